"use strict";

// A volume: three planes through a voxel in one picture. Voxels are numbered as slices are in the file, from 1, along x, y, z.

const STACKED = 480; // pixels; in narrower frames, one plane is below the other
const GAP = 0.06; // of a plane, around the point where the lines cross

const partsOf = (map) => map.planes ?? [map];

// The plane of a map at a point of the picture, or the map of a photo; null outside of what the network saw.
function partAt(map, x, y) {
  return partsOf(map).find(({ place: [left, top, right, bottom] }) => x >= left && y >= top && x < right && y < bottom) ?? null;
}

// The voxel at a point of the picture; null between planes.
function voxelAt(map, x, y) {
  const plane = partAt(map, x, y);
  if (!plane) return null;
  const { shape, flips, voxel } = map.volume;
  const [left, top, right, bottom] = plane.place;
  const shares = [(x - left) / (right - left), (y - top) / (bottom - top)];
  return voxel.map((number, axis) => {
    const at = plane.axes.indexOf(axis);
    if (at < 0) return number;
    const step = Math.floor(shares[at] * shape[axis]);
    return flips[axis] ? shape[axis] - step : step + 1;
  });
}

// Where the planes of a volume cross, in the picture of one of them.
function crossing({ axes, place: [left, top, right, bottom] }, { shape, flips, voxel }) {
  const [across, down] = axes.map((axis) => {
    const share = (voxel[axis] - 0.5) / shape[axis];
    return flips[axis] ? 1 - share : share;
  });
  return [left + across * (right - left), top + down * (bottom - top)];
}

// Draws where the planes cross and, over a map that hides those of the picture, the letters of directions.
function drawPlanes(context, map, scale, hasLetters) {
  for (const plane of map.planes) {
    const [left, top, right, bottom] = plane.place.map((edge) => edge * scale);
    const [x, y] = crossing(plane, map.volume).map((at) => at * scale);
    const gap = GAP * (right - left);
    const lines = [[left, y, x - gap, y], [x + gap, y, right, y], [x, top, x, y - gap], [x, y + gap, x, bottom]];
    Object.assign(context, { strokeStyle: "rgb(255 255 255 / 60%)", lineWidth: 1 });
    context.beginPath();
    for (const [fromX, fromY, toX, toY] of lines) {
      if (toX < fromX || toY < fromY) continue; // the gap reaches the edge
      context.moveTo(fromX, fromY);
      context.lineTo(toX, toY);
    }
    context.stroke();
    if (hasLetters) drawLetters(context, plane.ends, [left, top, right, bottom]);
  }
}

function drawLetters(context, ends, [left, top, right, bottom]) {
  const [x, y, margin] = [(left + right) / 2, (top + bottom) / 2, 4];
  const places = [["left", "middle", left + margin, y], ["right", "middle", right - margin, y], ["center", "top", x, top + margin], ["center", "bottom", x, bottom - margin]];
  Object.assign(context, { font: "bold 15px sans-serif", fillStyle: "#fff", lineJoin: "round" });
  [...ends].forEach((letter, at) => {
    const [textAlign, textBaseline, ...place] = places[at];
    Object.assign(context, { textAlign, textBaseline, strokeStyle: "#000", lineWidth: 4 });
    context.strokeText(letter, ...place);
    context.fillText(letter, ...place);
  });
}

// The names of the planes and their slices, in words.
function planeWords({ planes, volume: { shape, voxel } }) {
  return planes.map(({ name, axes }) => {
    const normal = [0, 1, 2].find((axis) => !axes.includes(axis));
    return `${name}: slice ${voxel[normal]} of ${shape[normal]}`;
  }).join(", ");
}
