import assert from "node:assert/strict";
import { load } from "./scripts.js";

const { Atlas, Probe, percent } = load(["atlas.js"], ["Atlas", "Probe", "percent"]);

// Two classes in two rows of three cells, over the middle of a photo of 180 x 60 pixels.
const CAT = [0, 0, 0.2, 0, 1, 0.4];
const DOG = [0, 0.8, 0, 0, 0.5, 0.2];

function atlasOf(clear = 0.1) {
  const bytes = new Uint8Array(Uint16Array.from([...CAT, ...DOG], (value) => Math.round(65535 * value)).buffer);
  const cells = btoa(String.fromCharCode(...bytes));
  const subjects = [{ index: 281, name: "cat" }, { index: 150, name: "dog" }];
  return new Atlas({ size: [180, 60], place: [60, 0, 120, 40], shape: [2, 3], clear, cells, subjects });
}

const close = (found, expected) => [...found].forEach((value, index) => assert.ok(Math.abs(value - expected[index]) < 1e-4, `${found}`));

Deno.test("at the center of a cell, its values are the evidence", () => {
  close(atlasOf().evidence(90, 30), [1, 0.5]);
  close(atlasOf().evidence(90, 10), [0, 0.8]);
  close(atlasOf().evidence(110, 30), [0.4, 0.2]);
});

Deno.test("between two centers, the evidence is in between", () => {
  close(atlasOf().evidence(90, 20), [0.5, 0.65]);
  close(atlasOf().evidence(95, 30), [0.85, 0.425]);
});

Deno.test("outside of what the network saw, there is no evidence", () => {
  for (const [x, y] of [[59, 30], [121, 30], [90, 41]]) close(atlasOf().evidence(x, y), [0, 0]);
});

Deno.test("the classes at a point are sorted by their shares", () => {
  const [first, second] = atlasOf().at(90, 30);
  assert.deepEqual([first.subject.name, second.subject.name], ["cat", "dog"]);
  close([first.share, second.share], [2 / 3, 1 / 3]);
});

Deno.test("no class is named where no evidence is clear", () => {
  assert.deepEqual(atlasOf(0.3).at(110, 10), []);
  assert.equal(atlasOf(0.1).at(110, 10)[0].subject.name, "cat");
});

Deno.test("the peak is the center of the cell with the most evidence", () => assert.deepEqual(atlasOf().peak, [90, 30]));

Deno.test("a region has its class where its lead is clear, and none elsewhere", () => {
  const { width, height, named } = atlasOf(0.25).regions;
  assert.deepEqual([width, height], [180, 60]);
  assert.deepEqual([[90, 30], [90, 10], [20, 30], [110, 10]].map(([x, y]) => named[y * width + x]), [0, 1, -1, -1]);
});

// A photo of a size in a frame at 30, 5 of the window, which it fills as `object-fit: contain` does, clicked at a point.
function pixelOf(size, [width, height], [clientX, clientY]) {
  const frame = { getBoundingClientRect: () => ({ left: 30, top: 5, width, height }) };
  return Object.assign(Object.create(Probe.prototype), { frame, size }).pixel({ clientX, clientY });
}

Deno.test("a click on a photo is at its pixel, beside margins at the left or above", () => {
  assert.deepEqual(pixelOf([100, 100], [200, 100], [30 + 50 + 20, 5 + 10]), [20, 10]);
  assert.deepEqual(pixelOf([50, 50], [100, 300], [30 + 40, 5 + 100 + 6]), [20, 3]); // twice as large
});

Deno.test("a click on a margin is at no pixel", () => {
  for (const x of [30 + 49, 30 + 151]) assert.equal(pixelOf([100, 100], [200, 100], [x, 15]), null);
});

Deno.test("shares are printed in whole percent", () => assert.equal(percent(0.666), "67%"));
