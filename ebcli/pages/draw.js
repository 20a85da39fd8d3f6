"use strict";

// Maps as numbers, and drawing them: like a run draws them, but here.

const LEVELS = 256;

// The answer of the server: a description in JSON, and the values of each map behind it.
function decoded(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const about = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let start = 4 + length;
  for (const part of about.maps.flatMap(partsOf)) {
    const [height, width] = part.shape;
    part.values = new Float32Array(buffer, start, height * width);
    start += 4 * height * width;
  }
  return about;
}

// The value of a map at a point of the photo, in units of a uniform map; null outside of what the network saw.
function valueAt(map, x, y) {
  const part = partAt(map, x, y);
  if (!part) return null;
  const [height, width] = part.shape;
  const [left, top, right, bottom] = part.place;
  const column = Math.floor(((x - left) / (right - left)) * width);
  const row = Math.floor(((y - top) / (bottom - top)) * height);
  return { row, column, value: part.values[row * width + column] * cellsOf(map) };
}

// The number of cells, also of a volume's map.
const cellsOf = (map) => map.shape.reduce((cells, side) => cells * side, 1);

// For each pixel of an axis: the cells around it and their weights. Cubic convolution with a = -0.5, and a border of one
// cell like the outermost ones, as in pictures.
function taps(pixels, low, high, cells, smooth) {
  const cubic = (t) => (t < 1 ? (1.5 * t - 2.5) * t * t + 1 : t < 2 ? ((-0.5 * t + 2.5) * t - 4) * t + 2 : 0);
  const clamp = (cell) => Math.min(cells - 1, Math.max(0, cell));
  return Array.from({ length: pixels }, (_, pixel) => {
    const place = ((pixel + 0.5 - low) / (high - low)) * cells;
    if (!smooth) return [[clamp(Math.floor(place)), 1]];
    const first = Math.floor(place - 0.5) - 1;
    const near = [0, 1, 2, 3].map((step) => first + step).filter((cell) => cell >= -1 && cell <= cells);
    const weights = near.map((cell) => cubic(Math.abs(place - 0.5 - cell)));
    const sum = weights.reduce((one, other) => one + other, 0);
    return near.map((cell, at) => [clamp(cell), weights[at] / sum]);
  });
}

// The map (height, width) at each pixel of a canvas whose photo has been scaled.
function upsampled(map, values, size, scale, smooth) {
  const [, width] = map.shape;
  const [left, top, right, bottom] = map.place.map((edge) => edge * scale);
  const columns = taps(size.width, left, right, width, smooth);
  const rows = taps(size.height, top, bottom, map.shape[0], smooth);
  const across = new Float32Array(map.shape[0] * size.width);
  for (let row = 0; row < map.shape[0]; row++) {
    for (let x = 0; x < size.width; x++) {
      let sum = 0;
      for (const [cell, weight] of columns[x]) sum += weight * values[row * width + cell];
      across[row * size.width + x] = sum;
    }
  }
  const found = new Float32Array(size.width * size.height);
  for (let y = 0; y < size.height; y++) {
    for (const [cell, weight] of rows[y]) {
      const from = cell * size.width;
      for (let x = 0; x < size.width; x++) found[y * size.width + x] += weight * across[from + x];
    }
  }
  return found;
}

// Draws a map on a canvas as large as the photo on the page; false if it is blank.
function draw(canvas, map, colors, { style, signed, cells }) {
  const scale = canvas.width / map.size[0];
  const ends = map.scales[signed ? "signed" : "unsigned"];
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  if (ends) {
    const image = context.createImageData(canvas.width, canvas.height);
    for (const part of partsOf(map)) paint(image, part, ends, colors, { style, signed, cells, scale });
    context.putImageData(image, 0, 0);
  }
  if (map.planes) drawPlanes(context, map, scale, ends && style === "heatmap");
  else if (ends && style === "overlay") drawCrop(context, map, scale);
  return Boolean(ends);
}

// Paints the map of a photo, or a plane, on the pixels of a canvas.
function paint(image, part, [low, high], colors, { style, signed, cells, scale }) {
  const factor = (LEVELS - 1) / (high - low);
  const own = signed ? part.values : part.values.map((value) => Math.max(0, value)); // or a dip would dent a peak
  const found = upsampled(part, own, image, scale, !cells);
  const { opacity, [style]: palette } = colors.scales[signed ? "signed" : "unsigned"];
  const [left, top, right, bottom] = part.place.map((edge) => Math.ceil(edge * scale - 0.5));
  const hasMargin = style === "heatmap" && !part.axes; // gray, unless it is a plane
  for (let y = 0, at = 0; y < image.height; y++) {
    for (let x = 0; x < image.width; x++, at++) {
      if (x < left || y < top || x >= right || y >= bottom) {
        if (hasMargin) image.data.set([119, 119, 119, 255], 4 * at);
        continue;
      }
      const level = Math.min(LEVELS - 1, Math.max(0, Math.floor((found[at] - low) * factor + 0.5)));
      image.data[4 * at] = palette[3 * level];
      image.data[4 * at + 1] = palette[3 * level + 1];
      image.data[4 * at + 2] = palette[3 * level + 2];
      image.data[4 * at + 3] = style === "heatmap" ? 255 : opacity[level];
    }
  }
}

// Draws the edges of what the network saw of a photo, if that is a part of it.
function drawCrop(context, map, scale) {
  const { width, height } = context.canvas;
  const [left, top, right, bottom] = map.place.map((edge) => Math.ceil(edge * scale - 0.5));
  if (left <= 0 && top <= 0 && right >= width && bottom >= height) return;
  context.strokeStyle = "rgb(150 150 150)";
  context.strokeRect(left, top, right - left, bottom - top);
}
