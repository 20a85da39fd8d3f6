import assert from "node:assert/strict";
import { documentOf, load } from "./scripts.js";

const map = (number, score, mass = null) => ({ class: number, score, mass, value: null, blank: score === 0, against: null });
const outcome = (maps, more = {}) => ({ layer: 0, method: 0, error: null, label: null, predicted: null, seconds: 1, maps, ...more });

const DATA = {
  classes: [{ index: 282, name: "tiger cat" }, { index: 967, name: "espresso" }, { index: 7, name: null }],
  images: [
    {
      name: "cats/cat10.jpg",
      outcomes: [
        outcome([map(0, 0.7)], { label: 282, predicted: 967 }),
        outcome([map(0, 0.9, 0.1)], { label: 282, predicted: 282 }), // by a network that is better
      ],
    },
    { name: "cats/cat9.jpg", outcomes: [outcome([map(0, 0.5), map(1, 0.25)], { label: 282, predicted: 967, seconds: 3 })] },
    { name: "Coffee.png", outcomes: [outcome([map(1, 0, 0.8)]), outcome([map(2, 0.75, 0.5)], { layer: 1 })] },
    { name: "broken.png", outcomes: [outcome([], { error: "it is broken" })] },
  ],
};

const NAMES = ["select", "unfiltered", "roleOf", "splitName", "number", "nameOf", "isCommand", "tableClasses", "imagesByPrediction"];
const SCRIPTS = ["parts.js", "model.js", "confusion.js"];
const pageOf = (data) => load(SCRIPTS, NAMES, { document: documentOf(data), localStorage: undefined });
const page = pageOf(DATA);

const names = (filter) => page.select({ ...page.unfiltered, ...filter }).map(({ image }) => image.name);

Deno.test("names are sorted as people count", () => {
  assert.deepEqual(names({}), ["broken.png", "cats/cat9.jpg", "cats/cat10.jpg", "Coffee.png"]);
  assert.deepEqual(names({ descending: true }), ["Coffee.png", "cats/cat10.jpg", "cats/cat9.jpg", "broken.png"]);
});

Deno.test("words are looked for in file names and class names, in any order", () => {
  assert.deepEqual(names({ query: "TIGER 10" }), ["cats/cat10.jpg"]);
  assert.deepEqual(names({ query: "espresso cat9" }), ["cats/cat9.jpg"]);
  assert.deepEqual(names({ query: "282 coffee" }), []);
});

Deno.test("the map that is shown is the first that matches", () => {
  const [first] = page.select({ ...page.unfiltered, query: "espresso", status: "wrong" });
  assert.equal(first.map, first.outcome.maps[1]);
});

Deno.test("the latest outcome of a layer is shown", () => {
  assert.deepEqual(names({ status: "blank" }), []); // the map at the other layer is later
  assert.deepEqual(names({ status: "blank", layer: "0" }), ["Coffee.png"]);
});

Deno.test("status, class, score and pair each leave what fits", () => {
  assert.deepEqual(names({ status: "failed" }), ["broken.png"]);
  assert.deepEqual(names({ status: "wrong" }), ["cats/cat9.jpg"]);
  assert.deepEqual(names({ class: "0" }), ["cats/cat9.jpg", "cats/cat10.jpg"]);
  assert.deepEqual(names({ score: [0.6, 0.8] }), ["Coffee.png"]);
  assert.deepEqual(names({ pair: { label: 282, predicted: 967 } }), ["cats/cat9.jpg"]);
});

Deno.test("what has no value comes last in either direction", () => {
  assert.deepEqual(names({ sort: "mass" }), ["cats/cat10.jpg", "Coffee.png", "broken.png", "cats/cat9.jpg"]);
  assert.deepEqual(names({ sort: "mass", descending: true }), ["Coffee.png", "cats/cat10.jpg", "broken.png", "cats/cat9.jpg"]);
});

Deno.test("a class of a labeled image says which one it is", () => {
  const [right, wrong] = DATA.images.map(({ outcomes }) => outcomes.at(-1));
  assert.equal(page.roleOf(right, right.maps[0]), "label, predicted");
  assert.deepEqual(wrong.maps.map((one) => page.roleOf(wrong, one)), ["label", "predicted"]);
});

Deno.test("paths are cut behind the last separator of either kind", () => {
  assert.deepEqual(page.splitName("a/b c/d.jpg"), ["a/b c/", "d.jpg"]);
  assert.deepEqual(page.splitName("a\\b.jpg"), ["a\\", "b.jpg"]);
  assert.deepEqual(page.splitName("b.jpg"), ["", "b.jpg"]);
});

Deno.test("the confusion table counts the images of each pair", () => {
  assert.deepEqual(page.tableClasses(), { classes: [282, 967], total: 2 });
  const counts = [...page.imagesByPrediction(282)].map(([predicted, images]) => [predicted, images.length]);
  assert.deepEqual(counts, [[282, 1], [967, 1]]);
});

Deno.test("of many classes, the table has those with the most wrong predictions", () => {
  const pairs = Array.from({ length: 30 }, (_, index) => ({ label: index, predicted: index > 9 ? 29 : index }));
  const images = pairs.map((pair) => ({ name: `${pair.label}.jpg`, outcomes: [outcome([], pair)] }));
  const { classes, total } = pageOf({ classes: [], images }).tableClasses();
  assert.equal(total, 30);
  assert.deepEqual(classes, Array.from({ length: 20 }, (_, index) => index + 10));
});

Deno.test("small numbers keep their first digits, and missing ones are a dash", () => {
  assert.deepEqual([0.12345, 0, 0.00042, null].map(page.number), ["0.123", "0.000", "4.2e-4", "–"]);
});

Deno.test("a class without a name has its index", () => assert.equal(page.nameOf(DATA.classes[2]), "class 7"));

Deno.test("keys are commands unless somebody writes, or holds a modifier", () => {
  const event = (isField, more = {}) => ({ target: { matches: () => isField }, ...more });
  assert.equal(page.isCommand(event(false)), true);
  assert.equal(page.isCommand(event(true)), false);
  for (const key of ["ctrlKey", "metaKey", "altKey", "defaultPrevented"]) assert.equal(page.isCommand(event(false, { [key]: true })), false);
});
