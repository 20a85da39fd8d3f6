import assert from "node:assert/strict";
import { load } from "./scripts.js";

const { crossing, planeWords, valueAt, voxelAt } = load(["volume.js", "draw.js"], ["crossing", "planeWords", "valueAt", "voxelAt"]);

// 4 x 5 x 2 voxels, of which x and z are drawn in reverse, in planes of 10 pixels a voxel.
const MAP = {
  shape: [2, 5, 4],
  volume: { shape: [4, 5, 2], flips: [true, false, true], voxel: [1, 2, 2] },
  planes: [
    { name: "axial", axes: [0, 1], place: [10, 10, 50, 60], shape: [1, 2], values: new Float32Array([0.25, 0.5]) },
    { name: "sagittal", axes: [1, 2], place: [60, 10, 110, 30], shape: [1, 1], values: new Float32Array([0.125]) },
  ],
};

Deno.test("a point in a plane is a voxel of the file, and the third number is that of the plane", () => {
  assert.deepEqual(voxelAt(MAP, 10, 10), [4, 1, 2]);
  assert.deepEqual(voxelAt(MAP, 49.9, 59.9), [1, 5, 2]);
  assert.deepEqual(voxelAt(MAP, 25, 35), [3, 3, 2]);
  assert.deepEqual(voxelAt(MAP, 75, 12), [1, 2, 2]);
  assert.deepEqual(voxelAt(MAP, 75, 29), [1, 2, 1]);
});

Deno.test("between planes, there is no voxel and no value", () => {
  for (const [x, y] of [[9, 20], [55, 20], [20, 60], [70, 30]]) {
    assert.equal(voxelAt(MAP, x, y), null);
    assert.equal(valueAt(MAP, x, y), null);
  }
});

Deno.test("planes cross at the middle of their voxel", () => {
  assert.deepEqual(crossing(MAP.planes[0], MAP.volume), [45, 25]);
  assert.deepEqual(crossing(MAP.planes[1], MAP.volume), [75, 15]);
});

Deno.test("a value in a plane counts all cells of the volume", () => {
  assert.equal(valueAt(MAP, 45, 20).value, 20);
  assert.equal(valueAt(MAP, 100, 20).value, 5);
});

Deno.test("planes are named with their slices", () => {
  assert.equal(planeWords(MAP), "axial: slice 2 of 2, sagittal: slice 1 of 4");
});
