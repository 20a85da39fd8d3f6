"use strict";

// The data and the filters, independent of the page.

const data = JSON.parse(part("data").textContent);

const collator = new Intl.Collator(undefined, { numeric: true });

// "label", "predicted", both or "against LABEL" for a class of an image whose true class is known, else "".
function roleOf(outcome, map) {
  if (outcome.label === null || outcome.label === undefined) return "";
  if (map.against) return `against ${map.against}`;
  const { index } = data.classes[map.class];
  return [index === outcome.label && "label", index === outcome.predicted && "predicted"].filter(Boolean).join(", ");
}

const isLabeled = (outcome) => outcome.label !== null && outcome.label !== undefined;

const isWrong = (outcome) => isLabeled(outcome) && outcome.label !== outcome.predicted;

// Whether an outcome has this true class and this prediction; any outcome if they do not matter.
function isPair(outcome, pair) {
  return pair === null || (outcome?.label === pair.label && outcome?.predicted === pair.predicted);
}

// "photos/cat.jpg" -> ["photos/", "cat.jpg"]
function splitName(path) {
  const cut = Math.max(path.lastIndexOf("/"), path.lastIndexOf("\\")) + 1;
  return [path.slice(0, cut), path.slice(cut)];
}

data.images.forEach((image, number) => {
  image.number = number;
  const texts = image.outcomes.flatMap(({ question, answer }) => [question, answer]);
  image.folded = [image.name, ...texts].join(" ").toLowerCase();
  image.prediction = image.outcomes.findLast(isLabeled);
});
data.folded = data.classes.map((one) => `${one.index} ${nameOf(one).toLowerCase()}`);

const unfiltered = {
  query: "",
  class: "",
  status: "",
  pair: null, // the true class and the predicted one
  score: [0, Infinity],
  mass: [0, Infinity],
  layer: "",
  method: "",
  sort: "name",
  descending: false,
};

function within(value, [from, to]) {
  return value === null ? from === 0 && to === Infinity : from <= value && value <= to;
}

// The latest outcome of an image with the chosen layer and method, if any.
function outcomeOf(image, filter) {
  return image.outcomes.findLast(
    (outcome) =>
      (filter.layer === "" || outcome.layer === Number(filter.layer)) &&
      (filter.method === "" || outcome.method === Number(filter.method)),
  );
}

// What is shown of an image: {image, outcome, map} with the first matching map; null if none matches.
function shownOf(image, filter, words) {
  const outcome = outcomeOf(image, filter);
  if (!outcome || !isPair(image.prediction, filter.pair)) return null;
  const left = words.filter((word) => !image.folded.includes(word));
  const fits = (map) =>
    (filter.class === "" || map.class === Number(filter.class)) &&
    (filter.status !== "blank" || map.blank) &&
    (filter.status !== "wrong" || isWrong(outcome)) &&
    within(map.score, filter.score) &&
    within(map.mass, filter.mass) &&
    left.every((word) => data.folded[map.class].includes(word));
  if (outcome.error !== null) {
    const asked = filter.class !== "" || filter.score.concat(filter.mass).join() !== "0,Infinity,0,Infinity";
    const hidden = asked || left.length > 0 || !["", "failed"].includes(filter.status);
    return hidden ? null : { image, outcome, map: null };
  }
  if (filter.status === "failed") return null;
  const map = outcome.maps.find(fits);
  return map ? { image, outcome, map } : null;
}

// All matches, sorted. The words of the query may be in any order, in the file name or in a class name.
function select(filter) {
  const words = filter.query.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = [];
  for (const image of data.images) {
    const one = shownOf(image, filter, words);
    if (one) shown.push(one);
  }
  const keys = {
    name: null,
    score: (one) => one.map?.score ?? one.map?.value ?? null,
    mass: (one) => one.map?.mass ?? null,
    seconds: (one) => one.outcome.seconds,
  };
  const key = keys[filter.sort];
  const sign = filter.descending ? -1 : 1;
  const byName = (a, b) => a.image.order - b.image.order;
  shown.sort(
    key === null
      ? (a, b) => sign * byName(a, b)
      : (a, b) => {
          const [x, y] = [key(a), key(b)];
          if (x === null || y === null) return (x === null) - (y === null) || byName(a, b); // missing values come last
          return sign * (x - y) || byName(a, b);
        },
  );
  return shown;
}

// Names are compared only once: with ten thousand of them, that takes longer than anything else here.
[...data.images]
  .sort((a, b) => collator.compare(a.name, b.name))
  .forEach((image, order) => {
    image.order = order;
  });
