import assert from "node:assert/strict";
import { load } from "./scripts.js";

const { decoded, valueAt, upsampled } = load(["volume.js", "draw.js"], ["decoded", "valueAt", "upsampled"]);

// Two rows of three cells, over the right lower part of a photo of 90 x 60 pixels.
const MAP = { shape: [2, 3], place: [30, 20, 90, 60], values: new Float32Array([1, 2, 3, 4, 5, 6]) };

Deno.test("an answer has a description, and the values of its maps one after another", () => {
  const about = { size: [9, 6], maps: [{ shape: [1, 2] }, { shape: [2, 1] }] };
  let text = JSON.stringify(about);
  text += " ".repeat((4 - (text.length % 4)) % 4); // values begin at a multiple of their size
  const buffer = new ArrayBuffer(4 + text.length + 16);
  new DataView(buffer).setUint32(0, text.length, true);
  new Uint8Array(buffer, 4, text.length).set(new TextEncoder().encode(text));
  const values = new DataView(buffer, 4 + text.length);
  [0.5, 1, 2, 4].forEach((value, index) => values.setFloat32(4 * index, value, true));
  const { size, maps } = decoded(buffer);
  assert.deepEqual(size, [9, 6]);
  assert.deepEqual(maps.map((map) => [...map.values]), [[0.5, 1], [2, 4]]);
});

Deno.test("a pixel has the value of its cell, times the number of cells", () => {
  assert.deepEqual(valueAt(MAP, 30, 20), { row: 0, column: 0, value: 6 });
  assert.deepEqual(valueAt(MAP, 69.9, 41), { row: 1, column: 1, value: 30 });
  assert.deepEqual(valueAt(MAP, 89.9, 20), { row: 0, column: 2, value: 18 });
});

Deno.test("a pixel outside of what the network saw has no value", () => {
  for (const [x, y] of [[29.9, 30], [90, 30], [40, 19.9], [40, 60]]) assert.equal(valueAt(MAP, x, y), null);
});

Deno.test("with cells, each pixel is drawn as its cell", () => {
  const drawn = upsampled(MAP, MAP.values, { width: 90, height: 60 }, 1, false);
  for (const [x, y] of [[30, 20], [50, 39], [89, 59], [31, 40]]) {
    assert.equal(drawn[y * 90 + x], valueAt(MAP, x + 0.5, y + 0.5).value / 6);
  }
});

Deno.test("a map that is the same everywhere is drawn the same everywhere", () => {
  const drawn = upsampled(MAP, new Float32Array(6).fill(0.25), { width: 90, height: 60 }, 1, true);
  assert.ok(drawn.every((value) => Math.abs(value - 0.25) < 1e-6));
});

// Cubic convolution reproduces polynomials of the second degree (Keys 1981).
Deno.test("between the centers of inner cells, a parabola is drawn as itself", () => {
  const parabola = (x, y) => 3 - 2 * x + 0.5 * x * x + y - 0.25 * y * y;
  const map = { shape: [6, 8], place: [0, 0, 80, 30] };
  const values = new Float32Array(48);
  for (let row = 0; row < 6; row++) for (let column = 0; column < 8; column++) values[row * 8 + column] = parabola(column, row);
  const drawn = upsampled(map, values, { width: 160, height: 60 }, 2, true);
  for (const [x, y] of [[35, 15], [80, 30], [123, 44]]) {
    const expected = parabola((x + 0.5) / 20 - 0.5, (y + 0.5) / 10 - 0.5);
    assert.ok(Math.abs(drawn[y * 160 + x] - expected) < 1e-5, `${x}, ${y}`);
  }
});
