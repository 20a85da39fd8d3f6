"use strict";

// The confusion table: how many images of each true class were predicted as each class. A number shows their maps.

const MOST_CLASSES = 20; // rows; of more classes, those with the most wrong predictions

const labeled = data.images.filter((image) => image.prediction);

const className = new Map(data.classes.filter(({ name }) => name).map(({ index, name }) => [index, name]));
const nameOfIndex = (index) => className.get(index) ?? nameOf({ index, name: null });

const pairKey = ({ label, predicted }) => `${label} ${predicted}`; // several classes may have one name

const pairWords = ({ label, predicted }) => `${nameOfIndex(label)}, predicted as ${nameOfIndex(predicted)}`;

// The indices of the classes in the table, in their order, and of all that could be in it.
function tableClasses() {
  const errors = new Map();
  for (const { label, predicted } of labeled.map((image) => image.prediction)) {
    for (const index of [label, predicted]) errors.set(index, (errors.get(index) ?? 0) + Number(label !== predicted));
  }
  const ranked = [...errors].sort((a, b) => b[1] - a[1] || a[0] - b[0]).map(([index]) => index);
  return { classes: ranked.slice(0, MOST_CLASSES).sort((a, b) => a - b), total: ranked.length };
}

// The images of a true class that were predicted as each class.
function imagesByPrediction(label) {
  const images = new Map();
  for (const image of labeled.filter(({ prediction }) => prediction.label === label)) {
    const { predicted } = image.prediction;
    if (!images.has(predicted)) images.set(predicted, []);
    images.get(predicted).push(image);
  }
  return images;
}

function confusionCell(pair, images, total, choose) {
  const cell = element("td", { class: pair.label === pair.predicted ? "right" : "error" });
  if (!images.length) return cell;
  cell.style.setProperty("--share", images.length / total);
  const text = images.length.toLocaleString("en");
  if (!images.some((image) => image.outcomes.some((outcome) => outcome.maps.length))) {
    cell.title = "no maps: --only wrong";
    cell.append(text);
    return cell;
  }
  const words = `${text}: ${pairWords(pair)}`;
  const button = element("button", { type: "button", title: pairWords(pair), "aria-label": words }, text);
  button.setAttribute("aria-pressed", false);
  button.dataset.pair = pairKey(pair);
  button.addEventListener("click", () => choose(pair));
  cell.append(button);
  return cell;
}

function confusionTable(choose) {
  const { classes, total } = tableClasses();
  const heading = (scope, name) => element("th", { scope, title: name }, element("span", {}, name));
  const corner = element("td", {}, "true ↓ predicted →");
  const table = element("table", {}, element("tr", {}, corner, ...classes.map((index) => heading("col", nameOfIndex(index)))));
  for (const label of classes) {
    const images = imagesByPrediction(label);
    const sum = [...images.values()].reduce((count, group) => count + group.length, 0);
    const cells = classes.map((predicted) => confusionCell({ label, predicted }, images.get(predicted) ?? [], sum, choose));
    table.append(element("tr", {}, heading("row", nameOfIndex(label)), ...cells));
  }
  let note = "Select a number to see the maps of its images.";
  if (total > classes.length) note += ` These are the ${classes.length} classes with the most wrong predictions, of ${total}.`;
  return [element("p", {}, note), element("div", { class: "scroll" }, table)];
}

function markPair(pair) {
  for (const button of part("confusion").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", pair !== null && button.dataset.pair === pairKey(pair));
  }
}
