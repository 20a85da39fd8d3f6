"use strict";

// What is said of a map beside it: its numbers and their meaning, its colors, and the outlines of what was found.

const MEANINGS = {
  score: "What the network gives this class; for most networks a probability, and all classes add up to 1.",
  value: "What the network returns. The map shows what raises it.",
  mass: "The share of the class's probability that reaches this layer. The rest is lost at neurons activated only by their bias, or belongs to constants such as a class token.",
  strength: "The sum of the map's positive cells. Each map is drawn on its own scale, so look here for how much there is. 1× noise is the median of maps of random noise.",
  head: "The output of the network that the map explains.",
  inputs: "The share of the evidence that each input of the network has. The rest is lost at neurons activated only by their bias.",
  evidence: "Clear: at least 3× noise. Weak: at least 1.5×. Hardly any: noise often gives such maps, or the score is below 1% and below chance.",
};

// of the words of an answer
const OF_WORDS = {
  score: "The probability of the word, given the question and the answer so far.",
  share: "The share of the evidence for the word that is at places of the picture. The rest is in the question, in the answer so far, and in what all places have in common.",
  evidence: "Clear: a share of at least 0.35. Weak: at least 0.14. Hardly any: words that are said without looking often have such shares.",
};

// Each number, and its meaning for those who point at it, tap it or go there with the keyboard.
function facts(map, subject) {
  const meanings = subject.span ? { ...MEANINGS, ...OF_WORDS } : MEANINGS;
  const kind = subject.is_value ? "value" : "score";
  const told = { [kind]: `${kind} ${number(subject.score)}` };
  const massName = subject.span ? "share" : "mass";
  if (map.mass !== null) told[massName] = `${massName} ${number(map.mass)}`;
  ["strength", "evidence"].forEach((name, at) => map.told[at] && (told[name] = map.told[at]));
  if (map.head !== null) told.head = `head ${map.head}`;
  const shares = map.inputs.map(([name, share]) => `${name} ${percent(share)}`);
  if (shares.length) told.inputs = `${shares.join(", ")} of the evidence`;
  return Object.entries(told).map(([name, text]) => {
    const id = `meaning-${name}-${(facts.count = (facts.count ?? 0) + 1)}`;
    const button = element("button", { type: "button", class: "link", "aria-describedby": id }, text);
    return element("span", { class: "fact" }, button, element("span", { class: "meaning", id, role: "tooltip" }, meanings[name]));
  });
}

// Why a map is blank.
function blankWords(subject, signed) {
  if (!subject.is_value) return "The map is blank: there is no evidence for this class";
  return signed ? "The map is blank: nothing raises or lowers this value" : "Nothing raises this value: choose Signed to see what lowers it";
}

// The columns of the tables that a network gets beside the photo, those with the most evidence first.
function tables(map) {
  return map.columns.map(([name, columns]) => {
    const rows = columns.map(([column, value]) =>
      element("tr", {}, element("th", { scope: "row" }, column), element("td", {}, value.toFixed(3))),
    );
    return element("table", {}, element("caption", {}, `${name}: evidence of each column`), ...rows);
  });
}

// The color scale: its colors, and what its ends stand for.
function scale(place, map, colors, { style, signed, names: [name, against] }) {
  const kind = signed ? "signed" : "unsigned";
  const ends = map.scales[kind];
  place.hidden = ends === null;
  if (ends === null) return;
  const { opacity, [style]: palette } = colors.scales[kind];
  const canvas = element("canvas", { width: LEVELS, height: 1, class: style });
  const image = new ImageData(LEVELS, 1);
  for (let level = 0; level < LEVELS; level++) {
    const color = palette.slice(3 * level, 3 * level + 3);
    image.data.set([...color, style === "heatmap" ? 255 : opacity[level]], 4 * level);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  const [low, high] = ends.map((end) => Number((end * cellsOf(map)).toPrecision(2)));
  const [left, right] = signed ? [against || `against ${name}`, `${name} · ±${high}`] : [low, high];
  place.replaceChildren(element("span", {}, String(left)), canvas, element("span", {}, `${right} × even share`));
}

// Boxes and outlines of what was found in a photo, to be clicked.
function outlines(list, size, selected, choose) {
  const make = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  const svg = make("svg", { viewBox: `0 0 ${size.join(" ")}`, preserveAspectRatio: "xMidYMid meet" });
  list.forEach((subject, at) => {
    const path = subject.outlines.map((line) => `M${line.map((point) => point.join(" ")).join("L")}Z`).join("");
    const shape = make("path", { d: path, class: at === selected ? "chosen" : "other" });
    const title = make("title", {});
    title.textContent = `${nameOf(subject)}, ${subject.is_value ? "value" : "score"} ${number(subject.score)}`;
    shape.append(title);
    shape.addEventListener("click", () => choose(subject));
    svg.append(shape);
  });
  return svg;
}
