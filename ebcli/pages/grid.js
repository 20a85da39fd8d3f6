"use strict";

// The images as cards; only those near the viewport exist.

class Grid {
  static GAP = 16;
  static SMALLEST = 256; // pixels
  static SMALLEST_NARROW = 240;
  static FOOT = 118; // a card's height below its picture

  constructor(list, open) {
    this.list = list;
    this.open = open;
    this.shown = [];
    this.active = 0; // the card in the tab order, which therefore always exists
    this.cards = new Map();
    new ResizeObserver(() => this.layOut()).observe(list);
    addEventListener("scroll", () => this.render(), { passive: true });
    list.addEventListener("keydown", (event) => this.onKey(event));
    list.addEventListener("focusin", (event) => {
      // not by its classes, or Tab would pass the card that is active
      if (event.target.matches(".open")) this.activate(Number(event.target.closest("li").dataset.index));
    });
  }

  show(shown) {
    this.shown = shown;
    this.active = Math.min(this.active, Math.max(0, shown.length - 1));
    for (const card of this.cards.values()) card.remove();
    this.cards.clear();
    this.layOut();
  }

  layOut() {
    const width = this.list.clientWidth;
    const smallest = width < 560 ? Grid.SMALLEST_NARROW : Grid.SMALLEST;
    this.columns = Math.max(1, Math.floor((width + Grid.GAP) / (smallest + Grid.GAP)));
    this.width = (width - Grid.GAP * (this.columns - 1)) / this.columns;
    this.rowHeight = Math.round(this.width * 0.75) + Grid.FOOT + Grid.GAP;
    this.list.style.height = `${Math.ceil(this.shown.length / this.columns) * this.rowHeight}px`;
    for (const [index, card] of this.cards) this.place(card, index);
    this.render();
  }

  place(card, index) {
    const left = (index % this.columns) * (this.width + Grid.GAP);
    const top = Math.floor(index / this.columns) * this.rowHeight;
    card.style.transform = `translate(${left}px, ${top}px)`;
    card.style.width = `${this.width}px`;
    card.style.height = `${this.rowHeight - Grid.GAP}px`;
  }

  render() {
    const top = -this.list.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(top / this.rowHeight) - 1) * this.columns;
    const end = Math.min(this.shown.length, (Math.ceil((top + innerHeight) / this.rowHeight) + 1) * this.columns);
    for (const [index, card] of this.cards) {
      if ((index < first || index >= end) && index !== this.active && !card.contains(document.activeElement)) {
        card.remove();
        this.cards.delete(index);
      }
    }
    for (let index = first; index < end; index++) this.need(index);
    if (this.shown.length) this.need(this.active);
  }

  need(index) {
    if (this.cards.has(index)) return;
    const made = card(this.shown[index], index, this.shown.length, () => this.open(index));
    made.querySelector(".open").tabIndex = index === this.active ? 0 : -1;
    this.place(made, index);
    // in the order in which a screen reader reads the list
    const next = Math.min(...[...this.cards.keys()].filter((other) => other > index));
    this.list.insertBefore(made, this.cards.get(next) ?? null);
    this.cards.set(index, made);
  }

  refresh(index) {
    this.cards.get(index)?.remove();
    this.cards.delete(index);
    this.render();
  }

  activate(index) {
    const before = this.cards.get(this.active)?.querySelector(".open");
    if (before) before.tabIndex = -1;
    this.active = index;
    this.need(index);
    this.cards.get(index).querySelector(".open").tabIndex = 0;
  }

  focus(index) {
    if (!this.shown.length) return;
    this.activate(Math.min(Math.max(index, 0), this.shown.length - 1));
    const made = this.cards.get(this.active);
    made.querySelector(".open").focus({ preventScroll: true });
    made.scrollIntoView({ block: "nearest" });
  }

  onKey(event) {
    if (!event.target.matches(".open") || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(innerHeight / this.rowHeight)) * this.columns;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
    Object.assign(steps, { PageUp: -page, PageDown: page, Home: -this.active, End: this.shown.length - 1 - this.active });
    if (!(event.key in steps)) return;
    event.preventDefault();
    event.stopPropagation();
    const next = this.active + steps[event.key];
    const vertical = event.key === "ArrowUp" || event.key === "ArrowDown";
    if (!vertical || (next >= 0 && next < this.shown.length)) this.focus(next);
  }
}

function card(one, index, count, open) {
  const { image, outcome } = one;
  const made = element("li", { class: "card", "aria-posinset": index + 1, "aria-setsize": count });
  made.dataset.index = index;
  const [folder, file] = splitName(image.name);
  const name = element("span", { class: "name" }, element("bdi", {}, file), element("small", {}, outcome.question || folder || "\u00a0"));
  if (isWrong(outcome)) {
    made.classList.add("wrong");
    name.prepend(element("span", { class: "mark" }, "wrong"));
  }
  const frame = element("span", { class: "frame", id: `picture-${index}` }, picture(image, outcome, one.map));
  const button = element("button", { type: "button", class: "open", title: image.name }, frame, name);
  button.addEventListener("click", open);
  const facts = element("p", { class: "facts" });
  const at = data.layers.length > 1 ? `${data.layers[outcome.layer]} · ` : "";
  const update = () => {
    const names = ["score", "value", "mass"].filter((name) => one.map && one.map[name] !== null);
    const told = [...names.map((name) => `${name === "mass" ? massName : name} ${number(one.map[name])}`), ...(one.map?.told ?? []).slice(0, 1)];
    told.push(`${outcome.seconds.toFixed(2)} s`);
    facts.textContent = one.map === null ? "" : at + told.map((one) => one.replaceAll(" ", "\u00a0")).join(" · ");
  };
  update();
  made.append(button);
  if (outcome.maps.length) {
    const options = outcome.maps.map((map, value) => ({
      value,
      content: [map.against ? "both" : [roleOf(outcome, map), nameOf(data.classes[map.class])].filter(Boolean).join(": ")],
      title: [nameOf(data.classes[map.class]), map.against].filter(Boolean).join(" or "),
    }));
    const choose = (value) => {
      one.map = outcome.maps[value];
      frame.replaceChildren(picture(image, outcome, one.map));
      update();
    };
    const label = `Classes of ${file}`;
    made.append(tabs(label, options, outcome.maps.indexOf(one.map), choose, { controls: frame.id }));
  }
  made.append(facts);
  return made;
}

// A video plays over its poster frame while the pointer is on it.
function playOnHover(box, source) {
  let film = null;
  box.classList.add("plays");
  box.addEventListener("pointerenter", () => {
    const isAnimation = /\.(gif|webp|png)$/.test(source);
    film ??= element(isAnimation ? "img" : "video", { class: "film", src: source, alt: isAnimation ? "" : null, loop: "" });
    box.append(film);
    if (isAnimation) return;
    film.muted = true; // browsers play nothing else by themselves
    film.play().catch(() => film.remove());
  });
  box.addEventListener("pointerleave", () => film?.remove());
}

// The photo with one map over it; both have the same size, so they stay aligned at any zoom.
function picture(image, outcome, map) {
  const box = element("div", { class: "picture" });
  const [, file] = splitName(image.name);
  const add = (kind, source, alt) => {
    const img = element("img", { class: kind, alt, decoding: "async", draggable: "false" });
    img.addEventListener("error", () => box.classList.remove(`has-${kind}`));
    img.src = source;
    box.classList.add(`has-${kind}`);
    box.append(img);
  };
  if (outcome.error !== null) {
    box.classList.add("failed");
    box.append(element("p", { class: "note" }, element("strong", {}, "Failed"), " ", outcome.error));
    return box;
  }
  if (outcome.photo) add("photo", outcome.photo, "Photo");
  if (outcome.film && map?.result) playOnHover(box, map.result);
  if (map) {
    const name = nameOf(data.classes[map.class]);
    if (map.map) add("map", map.map, `Map of ${name} in ${file}`);
    else if (map.overlay) add("overlay", map.overlay, `Map of ${name} over ${file}`);
    if (map.at_border) {
      const advice = "The map peaks at the border of the center crop: --fit whole explains the whole image";
      box.append(element("p", { class: "badge", title: advice }, "peak at the border: try --fit squash"));
    }
    if (map.evidence && map.evidence !== "clear" && !map.blank) {
      box.append(element("p", { class: "badge", title: map.told.join(", ") }, `${map.evidence} evidence`));
    }
    if (map.against && !map.blank) {
      const title = `Without --cmap, violet is evidence for ${name}, and green for ${map.against}`;
      box.append(element("p", { class: "badge two-sided", title }, `${name} or ${map.against}?`));
    }
    if (map.sufficiency && !map.sufficiency.suffices) {
      box.append(element("p", { class: "badge sufficiency", title: map.sufficiency.words }, "sufficiency not shown"));
    }
    if (map.blank) {
      box.classList.add("blank");
      box.append(element("p", { class: "badge" }, "blank map"));
    }
  }
  box.append(
    element("p", { class: "note no-photo" }, "Photo not available"),
    element("p", { class: "note no-map" }, map?.blank ? "The map is blank" : "No separate map available"),
    element("p", { class: "note no-overlay" }, "Neither photo nor map available"),
  );
  return box;
}
