"use strict";

// Which class has how much evidence where in a photo, and the point that is asked about: by pointer, touch or keyboard.

const FINE = 640; // longest side of the canvas that lights a region, in pixels
const TOLD = 3; // classes at a point
const STEPS = 24; // of the arrow keys across the longer side of a photo; with Shift, five times as many

class Atlas {
  // See ebcli.drawing.atlas_page.
  constructor({ size, place, shape, clear, cells, subjects }) {
    Object.assign(this, { size, place, shape, clear, subjects });
    this.cells = new Uint16Array(Uint8Array.from(atob(cells), (character) => character.charCodeAt(0)).buffer);
    this.found = new Float32Array(subjects.length);
  }

  // The evidence for each class at a point, interpolated between the centers of cells; 0 outside of what the network saw.
  evidence(x, y) {
    const { shape, cells, found } = this;
    const [height, width] = shape;
    const [left, top, right, bottom] = this.place;
    if (x < left || y < top || x > right || y > bottom) return found.fill(0);
    const column = Math.min(width - 1, Math.max(0, ((x - left) / (right - left)) * width - 0.5));
    const row = Math.min(height - 1, Math.max(0, ((y - top) / (bottom - top)) * height - 0.5));
    const [west, north] = [Math.floor(column), Math.floor(row)];
    const [u, v] = [column - west, row - north];
    const [east, south] = [west + 1 < width ? 1 : 0, north + 1 < height ? width : 0];
    for (let k = 0, at = north * width + west; k < found.length; k++, at += width * height) {
      const above = (1 - u) * cells[at] + u * cells[at + east];
      const below = (1 - u) * cells[at + south] + u * cells[at + south + east];
      found[k] = ((1 - v) * above + v * below) / 65535;
    }
    return found;
  }

  // The classes at a point with their shares, best first; none if no evidence is clear.
  at(x, y) {
    const found = [...this.evidence(x, y)];
    const sum = found.reduce((one, other) => one + other, 0);
    if (Math.max(...found) < this.clear) return [];
    const shares = found.map((value, number) => ({ number, subject: this.subjects[number], share: value / sum }));
    return shares.filter(({ share }) => share > 0).sort((one, other) => other.share - one.share);
  }

  // The number of the class with the most evidence at each pixel of a small canvas, -1 unless its lead is clear.
  get regions() {
    if (this.named) return this.named;
    const factor = Math.min(1, FINE / Math.max(...this.size));
    const [width, height] = this.size.map((side) => Math.max(1, Math.round(side * factor)));
    const named = new Int16Array(width * height);
    for (let y = 0, at = 0; y < height; y++) {
      for (let x = 0; x < width; x++, at++) {
        const found = this.evidence(((x + 0.5) / width) * this.size[0], ((y + 0.5) / height) * this.size[1]);
        let [best, next] = [0, 0];
        for (let k = 1; k < found.length; k++) {
          if (found[k] > found[best]) [best, next] = [k, found[best]];
          else next = Math.max(next, found[k]);
        }
        named[at] = found[best] - next < this.clear ? -1 : best;
      }
    }
    return (this.named = { width, height, named, present: new Set(named) });
  }

  // The center of the cell with the most evidence.
  get peak() {
    const [height, width] = this.shape;
    const [left, top, right, bottom] = this.place;
    const cell = this.cells.reduce((best, value, at, all) => (value > all[best] ? at : best), 0) % (width * height);
    const [column, row] = [cell % width, Math.floor(cell / width)];
    return [left + ((column + 0.5) / width) * (right - left), top + ((row + 0.5) / height) * (bottom - top)];
  }

  // Whether there is a region in which a class has the most evidence.
  has(number) {
    return number !== null && this.regions.present.has(number);
  }

  // Draws the outline of a class's region, and darkens what is outside of it.
  light(canvas, number, isDark) {
    const { width, height, named } = this.regions;
    Object.assign(canvas, { width, height });
    const image = new ImageData(width, height);
    const isIn = (x, y) => x < 0 || y < 0 || x >= width || y >= height || named[y * width + x] === number;
    for (let y = 0, at = 0; y < height; y++) {
      for (let x = 0; x < width; x++, at += 4) {
        if (!isIn(x, y)) image.data.set([12, 10, 8, isDark ? 165 : 0], at);
        else if (!(isIn(x - 1, y) && isIn(x + 1, y) && isIn(x, y - 1) && isIn(x, y + 1))) image.data.set([255, 255, 255, 255], at);
      }
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  // The number of a class; -1 if it is not among those that are compared.
  number(subject) {
    return this.subjects.findIndex(({ index }) => index === subject.index);
  }
}

const pixelWords = (place) => `Pixel ${place.map(Math.floor).join(", ")}`;

const percent = (share) => `${Math.round(100 * share)}%`;

// The point on a photo, which fills a frame as `object-fit: contain` does. It follows the pointer, and stays where it was
// kept by a click, a tap or Enter. `size`, `atlas` and `picks` are set from outside; `moved` gets the pixel or null, `kept` the
// class with the most evidence there, or undefined, and `picked` the pixel itself if a click asks about that (`picks`). `hoped` says
// whether that will be known of a point that is kept before: then it is asked about as soon as it can be. `words` names a point.
class Probe {
  constructor(frame, { moved = () => {}, kept = () => {}, picked = () => {}, hoped = () => false, words = pixelWords, isDark = true }) {
    Object.assign(this, { frame, moved, kept, picked, hoped, words, isDark, size: null, atlas: null, picks: false });
    Object.assign(this, { place: null, stays: null, lit: null, pointed: null, pressed: null, isWaiting: false });
    this.region = element("canvas", { class: "region", "aria-hidden": "true" });
    this.mark = element("span", { class: "point", hidden: "" });
    this.card = element("span", { class: "here", "aria-hidden": "true", hidden: "" });
    this.said = element("p", { class: "unseen", role: "status", "aria-live": "polite" });
    frame.append(this.region, this.mark, this.card, this.said);
    frame.addEventListener("pointermove", (event) => this.move(this.pixel(event)));
    frame.addEventListener("pointerdown", (event) => this.move(this.pixel(event)));
    frame.addEventListener("pointerup", (event) => event.button || this.keep(this.pixel(event)));
    frame.addEventListener("pointerleave", () => this.move(this.stays));
    frame.addEventListener("keydown", (event) => this.key(event));
  }

  // Of a photo of which more is known, or of none before another photo.
  ask(size, atlas, picks = false) {
    const { size: before, stays } = this;
    const isOther = atlas !== this.atlas;
    Object.assign(this, { size, atlas, picks });
    if (size && before) { // of the photo as the page has it, and then as it is
      this.stays = stays?.map((at, axis) => (at * size[axis]) / before[axis]) ?? null;
      if (this.isWaiting && this.isOpen) this.keep(this.stays);
      else if (isOther) this.move(this.stays);
      return;
    }
    this.isWaiting = false;
    this.light(null);
    this.press(null);
  }

  // The point that waits, which nothing will be known of in this way; null if none does.
  taken() {
    if (!this.isWaiting) return null;
    this.isWaiting = false;
    this.move(this.stays);
    return this.stays;
  }

  // Whether there is something to ask at a point.
  get isOpen() {
    return Boolean(this.size && (this.atlas || this.picks));
  }

  get scale() {
    const { width, height } = this.frame.getBoundingClientRect();
    const factor = Math.min(width / this.size[0], height / this.size[1]);
    return { factor, left: (width - this.size[0] * factor) / 2, top: (height - this.size[1] * factor) / 2 };
  }

  pixel({ clientX, clientY }) {
    if (!this.size) return null;
    const frame = this.frame.getBoundingClientRect();
    const { factor, left, top } = this.scale;
    const [x, y] = [(clientX - frame.left - left) / factor, (clientY - frame.top - top) / factor];
    return x < 0 || y < 0 || x >= this.size[0] || y >= this.size[1] ? null : [x, y];
  }

  move(place) {
    this.place = place;
    const found = place && this.atlas ? this.atlas.at(...place) : [];
    this.pointed = found[0]?.number ?? null;
    this.draw();
    if (place && (this.isOpen || this.isWaiting)) {
      const { factor, left, top } = this.scale;
      const [x, y] = [left + place[0] * factor, top + place[1] * factor];
      Object.assign(this.mark.style, { left: `${x}px`, top: `${y}px` });
      this.card.replaceChildren(
        ...found.slice(0, TOLD).flatMap(({ subject, share }) => [
          element("b", {}, nameOf(subject)),
          element("meter", { min: 0, max: 1, value: share }),
          element("i", {}, percent(share)),
        ]),
      );
      if (!found.length) this.card.textContent = this.isWaiting ? "Looking …" : "nothing clear here";
      const { offsetWidth: width, offsetHeight: height } = this.card; // where no finger covers it
      const across = Math.max(4, Math.min(this.frame.clientWidth - width - 4, x - width / 2));
      Object.assign(this.card.style, { left: `${across}px`, top: `${y > height + 24 ? y - height - 20 : y + 20}px` });
    }
    this.moved(place);
  }

  keep(place) {
    if (!place) return;
    Object.assign(this, { stays: place, pressed: null, isWaiting: !this.isOpen && this.hoped() });
    this.move(place);
    this.say();
    if (this.atlas) this.kept(this.atlas.at(...place)[0]?.subject);
    if (this.picks) this.picked(place);
  }

  // For those who listen.
  say() {
    const found = this.atlas ? this.atlas.at(...this.place).slice(0, TOLD) : [];
    const told = found.map(({ subject, share }) => `${nameOf(subject)} ${percent(share)}`).join(", ");
    this.said.textContent = this.atlas ? `Here: ${told || "nothing clear"}` : "";
    if (this.picks) this.said.textContent = this.words(this.place);
  }

  // Lights the region of a class of the list while somebody points at it.
  light(number) {
    this.lit = number;
    this.draw();
  }

  // Keeps the region of a class lit, in place of a point.
  press(number) {
    Object.assign(this, { pressed: number, stays: null });
    this.move(null);
  }

  draw() {
    const number = this.lit ?? this.pointed ?? this.pressed;
    const isDark = this.isDark || this.lit !== null;
    const drawn = this.atlas?.has(number) ? `${number} ${isDark}` : null;
    this.region.hidden = !drawn;
    this.frame.classList.toggle("lit", Boolean(drawn) && isDark);
    if (drawn && drawn !== this.drawn) this.atlas.light(this.region, number, isDark);
    this.drawn = drawn;
    this.mark.hidden = this.lit !== null || !(this.place && (this.isOpen || this.isWaiting));
    this.card.hidden = this.mark.hidden || !(this.atlas || this.isWaiting);
  }

  get middle() {
    return this.size.map((side) => side / 2 - 0.001);
  }

  key(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!this.size || !(this.isOpen || this.hoped()) || event.ctrlKey || event.metaKey || event.altKey || event.target !== this.frame) return;
    if (step) {
      const by = Math.max(...this.size) / (event.shiftKey ? 5 * STEPS : STEPS);
      const from = this.place ?? this.middle;
      const place = from.map((at, axis) => Math.min(this.size[axis] - 0.5, Math.max(0.5, at + (this.place ? step[axis] * by : 0))));
      this.stays = place;
      this.move(place);
      this.say();
    } else if (event.key === "Enter") this.keep(this.place ?? this.middle);
    else if (event.key === "Escape") this.move((this.stays = null));
    else return;
    event.preventDefault();
  }
}
