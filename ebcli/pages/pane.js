"use strict";

// One photo, one network and their map.

const IDLE = 300; // ms until the other layers are asked for, or twice as long as one layer took

const READ = `${matchMedia("(pointer: coarse)").matches ? "Tap" : "Point at"} the picture to read values`;

const FIELDS = ["photo", "network", "question", "target", "against", "box", "pixel", "layer", "method"];

class Pane extends Frame {
  // `page` has the status, the colors and the look, and is told of changes.
  constructor(page, state) {
    super();
    this.page = page;
    this.state = state;
    this.kept = { ...state }; // the latest one with an answer, which the address has
    this.known = { subjects: null, maps: null }; // what is asked for again only if it changes
    this.part("value").textContent = READ;
    this.listen();
  }

  listen() {
    for (const event of ["focusin", "pointerdown"]) {
      this.root.addEventListener(event, () => (this.page.active = this));
    }
    this.part("network").addEventListener("change", ({ target }) => {
      this.change({ network: target.value, target: "", against: "", box: "", pixel: "", layer: "" });
    });
    this.part("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      const text = this.part("target").value.trim();
      if (this.network.answers) this.change({ question: text, target: "", against: this.part("against").value.trim() });
      else this.change({ target: text, against: this.part("against").value.trim(), box: "" });
    });
    this.part("method").addEventListener("change", ({ target }) => {
      const chosen = this.network.methods.find((one) => one.name === target.value);
      this.change({ method: chosen.name, against: chosen.against ? this.state.against : "" });
    });
    this.part("layer").addEventListener("input", ({ target }) => {
      this.change({ layer: this.network.layers[target.value] }, false);
    });
    const moved = (place) => this.tell(place);
    const kept = (subject) => subject && String(subject.index) !== this.state.target && this.choose(subject);
    const picked = (place) => this.pick(place);
    this.probe = new Probe(this.part("shown"), { moved, kept, picked, isDark: false });
    this.part("whole").addEventListener("click", () => this.change({ pixel: "" }));
    this.part("photo").addEventListener("load", () => this.size());
    this.part("photo").addEventListener("error", () => this.failed("This photo cannot be shown"));
  }

  get network() {
    return this.page.status.networks[Number(this.state.network) || 0];
  }

  // Whether the network returns a value for each pixel, and so a click asks about one.
  get hasPixels() {
    return this.network.task === "maps of values";
  }

  get layer() {
    return this.method.picture ? "input" : this.state.layer || this.network.layer;
  }

  get method() {
    const { methods } = this.network;
    return methods.find((one) => one.name === this.state.method) ?? methods[0] ?? { name: "", signed: true, against: true };
  }

  get signed() {
    if (!this.method.signed) return false;
    return this.page.look.signed === "" ? this.state.against !== "" : this.page.look.signed === "1";
  }

  // The address follows once there is an answer.
  change(changes, isStep = true) {
    Object.assign(this.state, changes);
    this.isStep ||= isStep;
    this.page.trouble("");
    photos();
    this.refresh();
  }

  query(more = {}) {
    const asked = { ...this.state, ...more };
    return new URLSearchParams(Object.entries(asked).filter(([, value]) => value !== "")).toString();
  }

  // Shows what the state says; what has changed is asked for, and what is under way for an earlier one is given up.
  async refresh() {
    this.giveUp?.abort();
    const { signal } = (this.giveUp = new AbortController());
    clearTimeout(this.later);
    this.fill();
    if (!this.isReady()) return;
    this.wait(true);
    const isFirst = this.network.task === "classification" && !this.network.texts; // of the likeliest class, without a list
    if (this.known.subjects?.key === this.listKey) this.fillSubjects();
    else this.part("found").classList.add("stale");
    try {
      if (this.network.answers) return await this.answer(signal);
      if (!isFirst) await this.find(signal);
      if (!isFirst && this.state.target === "" && !this.known.subjects.list.length) {
        const ask = this.network.texts ? "Type a text: what to look for" : `${this.network.name} finds nothing in this photo`;
        return this.failed(ask);
      }
      const key = this.query({ layer: "" });
      if (this.known.maps?.key !== key) this.known.maps = { key, layers: new Map() };
      const start = performance.now();
      this.reuse();
      if (!this.known.maps.layers.has(this.layer)) await this.ask(this.layer, signal);
      this.wait(false);
      this.note();
      this.showMap(this.known.maps.layers.get(this.layer));
      this.kept = { ...this.state };
      this.page.changed(this.isStep);
      this.isStep = false;
      this.root.dataset.shown = this.query({ layer: this.layer });
      if (isFirst) await this.find(signal);
      this.list(this.map.subject);
      this.later = setTimeout(() => this.askRest(isFirst, signal), Math.max(IDLE, 2 * (performance.now() - start)));
    } catch (error) {
      if (signal.aborted) return;
      if (error.near) this.unknown(error);
      else this.failed(error.message);
    }
  }

  isReady() {
    const { photo } = this.state;
    const { name, ready, problem } = this.network;
    this.part("picture").classList.toggle("has-photo", photo !== "");
    if (problem) this.failed(problem);
    else if (photo === "") this.failed("Drop a photo here, or choose one above");
    else if (!ready) {
      this.wait(true, "");
      this.note(`Loading ${name} …`);
    }
    return ready && photo !== "";
  }

  // What the list depends on: with CLIP, on nothing but what was typed.
  get listKey() {
    const { photo, network, target, pixel } = this.state;
    const byText = this.network.texts;
    if (this.network.answers) return this.query({ target: "", layer: "" });
    if (byText && (target === "" || this.network.task === "classification")) return network;
    return new URLSearchParams(byText ? { photo, network, target } : { photo, network, pixel }).toString();
  }

  // The likely classes, or what is in the photo.
  async find(signal) {
    const { network, target } = this.state;
    const key = this.listKey;
    if (this.known.subjects?.key !== key) {
      const list = key === network ? [] : await (await this.fetch(`/subjects?${key}`, signal)).json();
      this.known.subjects = { key, list };
    }
    const [first] = this.known.subjects.list;
    if (key !== network && (target === "" || (this.network.texts && this.state.box === "")) && first) this.choose(first, false);
    this.fillSubjects();
  }

  // The words of an answer and their maps come at once; the target is the number of a word in this list, from 0.
  async answer(signal) {
    const key = this.query({ target: "", layer: "" });
    if (this.known.answer?.key !== key) {
      const { answer, maps, subjects, size } = decoded(await (await this.fetch(`/maps?${key}`, signal)).arrayBuffer());
      const list = subjects.map((subject, index) => Object.assign(subject, { index }));
      this.known.answer = { key, text: answer, maps: maps.map((map, at) => Object.assign(map, { subject: list[at], size })) };
      this.known.subjects = { key: this.listKey, list };
    }
    const { maps } = this.known.answer;
    const map = maps[Number(this.state.target)] ?? maps[0];
    this.state.target = String(map.subject.index);
    this.wait(false);
    this.note();
    this.showMap(map);
    this.kept = { ...this.state };
    this.page.changed(this.isStep);
    this.isStep = false;
    this.fillAnswer();
    this.root.dataset.shown = this.query({ layer: this.layer });
  }

  // The answer, in which each word that has a map shows it when it is pointed at.
  fillAnswer() {
    const found = this.part("found");
    if (this.answered !== this.known.answer || !found.querySelector(".answer")) {
      this.answered = this.known.answer;
      found.replaceChildren(this.answerText());
    }
    found.classList.remove("stale");
    [...found.querySelectorAll(".word")].forEach((word, at) => word.setAttribute("aria-pressed", String(at) === this.state.target));
  }

  answerText() {
    const { text, maps } = this.known.answer;
    const characters = [...text];
    const content = [];
    let end = 0;
    for (const { subject, mass } of maps) {
      const [start, stop] = subject.span;
      const title = `${mass.toFixed(2)} from the picture`;
      const word = element("button", { type: "button", class: "word", title }, characters.slice(start, stop).join(""));
      word.style.setProperty("--share", mass);
      const show = () => String(subject.index) !== this.state.target && this.change({ target: String(subject.index) }, false);
      for (const event of ["pointerenter", "focus", "click"]) word.addEventListener(event, show);
      content.push(characters.slice(end, start).join(""), word);
      end = stop;
    }
    return element("p", { class: "answer" }, ...content, characters.slice(end).join(""));
  }

  async ask(layer, signal) {
    const { maps } = this.known;
    const answer = decoded(await (await this.fetch(`/maps?${this.query({ layer })}`, signal)).arrayBuffer());
    const [subject] = answer.subjects;
    for (const map of answer.maps) maps.layers.set(map.layer, Object.assign(map, { subject, size: answer.size }));
    if (this.network.texts) return;
    this.state.target = String(subject.index);
    maps.key = this.query({ layer: "" });
  }

  get atlasKey() {
    return JSON.stringify([this.state.network || "0", this.state.photo]);
  }

  // The map of a likely class may be there already, with the atlas.
  reuse() {
    const { target, against } = this.state;
    const map = this.page.atlases.get(this.atlasKey)?.maps.get(target);
    if (map && !against && this.method.name === "contrastive" && map.layer === this.layer) this.known.maps.layers.set(map.layer, map);
  }

  // What the pointer, the list and the slider need, so that they ask nothing: the atlas of the photo, and all layers.
  async askRest(hasAtlas, signal) {
    try {
      const { photo, network } = this.state;
      if (hasAtlas && !this.page.atlases.has(this.atlasKey)) {
        const address = `/atlas?${new URLSearchParams({ photo, network })}`;
        const { atlas, maps, subjects, size } = decoded(await (await this.fetch(address, signal)).arrayBuffer());
        const known = maps.map((map, at) => [String(subjects[at].index), Object.assign(map, { subject: subjects[at], size })]);
        this.page.atlases.set(this.atlasKey, { atlas: new Atlas(atlas), maps: new Map(known) });
        this.probe.ask(size, this.page.atlases.get(this.atlasKey).atlas);
      }
      if (!this.method.picture && this.known.maps.layers.size < this.network.layers.length) await this.ask("every", signal);
    } catch {
      // one by one may do
    }
  }

  choose(subject, isStep = true) {
    const target = this.network.texts ? subject.name : String(subject.index);
    this.state.target = target;
    this.state.box = subject.box ? subject.box.map((number) => Number(number.toPrecision(8))).join() : "";
    if (isStep) this.change({});
  }

  // A pixel of a map of values is explained instead of the mean of all.
  pick(place) {
    const pixel = place.map(Math.floor);
    if (valueAt(this.map, pixel[0] + 0.5, pixel[1] + 0.5)) this.change({ pixel: pixel.join() });
    else this.note("This place is outside what the network sees of the photo");
  }

  // A subject that was typed is one of the list from now on.
  list(subject) {
    const isIt = (one) => one.index === subject.index && one.name === subject.name;
    if (!this.known.subjects.list.some(isIt)) this.known.subjects.list.push(subject);
    this.fillSubjects();
  }

  fill() {
    const { networks, photos } = this.page.status;
    const { state } = this;
    const select = this.part("network");
    select.replaceChildren(...networks.map((one, value) => element("option", { value }, one.name)));
    select.value = state.network || "0";
    this.part("networks").hidden = networks.length < 2;
    this.part("title").textContent = photos[state.photo] ?? "";
    this.part("title").hidden = state.photo === "";
    const address = state.photo && `/photo/${state.photo}`;
    if (address && this.part("photo").getAttribute("src") !== address) {
      this.showMap(null);
      this.part("photo").src = address;
    }
    this.part("target").placeholder = this.network.texts ? "any text" : "name or index";
    this.part("export").hidden = this.network.answers;
    this.root.classList.toggle("answers", this.network.answers);
    if (this.network.answers) {
      this.root.querySelector(".ask label").firstChild.data = "Question ";
      this.part("target").placeholder = "Describe the image.";
      if (document.activeElement !== this.part("target")) this.part("target").value = state.question;
    }
    this.part("target").setAttribute("list", this.network.texts ? "" : `classes-${state.network || 0}`);
    this.part("against").setAttribute("list", this.network.texts ? "" : `classes-${state.network || 0}`);
    this.part("against").value = this.page.className(state.network, state.against);
    this.part("against").disabled = !this.method.against;
    const methods = this.network.methods.map(({ name, source }) => element("option", { value: name, title: source }, name));
    this.part("method").replaceChildren(...methods);
    this.part("method").value = this.method.name;
    this.part("methods").hidden = methods.length < 2;
    const slider = this.part("layer");
    slider.max = Math.max(0, this.network.layers.length - 1);
    slider.value = this.network.layers.indexOf(this.layer);
    slider.setAttribute("aria-valuetext", this.layer);
    this.part("layers").hidden = this.method.picture || this.network.layers.length < 2;
    const output = this.root.querySelector(".layers output");
    output.textContent = output.title = this.layer;
    const isAtPixel = state.pixel !== "";
    this.part("where").hidden = !this.hasPixels && !isAtPixel;
    this.part("whole").hidden = !isAtPixel;
    this.root.querySelector(".where span").textContent = isAtPixel
      ? `At pixel ${state.pixel.replace(",", ", ")}`
      : "The mean of all pixels: click on the photo for the value of one";
  }

  get selected() {
    const { target, box } = this.state;
    const { list } = this.known.subjects;
    const near = (one) => !box || (one.box && box.split(",").every((n, i) => Math.abs(n - one.box[i]) < 0.01));
    return list.findIndex((one) => (this.network.texts ? one.name : String(one.index)) === target && near(one));
  }

  fillSubjects() {
    if (this.network.answers) return; // its words are in the answer
    this.part("found").classList.remove("stale");
    const { list } = this.known.subjects;
    const listed = JSON.stringify([this.selected, list]);
    if (listed === this.listed) return;
    this.listed = listed;
    const options = list.map((subject, value) => ({
      value,
      content: [
        element("strong", {}, nameOf(subject)),
        element("small", {}, this.network.texts ? "" : String(subject.index)),
        ...(subject.is_value ? [] : [element("meter", { min: 0, max: 1, value: subject.score, "aria-hidden": "true" })]),
        element("span", { class: "unseen" }, subject.is_value ? "value" : "score"),
        element("span", { class: "score" }, number(subject.score)),
      ],
    }));
    const choose = (value) => this.choose(list[value]);
    const focused = this.part("found").contains(document.activeElement);
    const made = tabs("Classes", options, this.selected, choose, { vertical: true });
    this.part("found").replaceChildren(made);
    if (focused) made.querySelector("[aria-selected=true]")?.focus();
    [...made.children].forEach((tab, at) => {
      const lit = () => (at === this.selected ? null : (this.probe.atlas?.number(list[at]) ?? null));
      tab.addEventListener("pointerenter", () => this.probe.light(lit()));
      for (const event of ["pointerleave", "click"]) tab.addEventListener(event, () => this.probe.light(null));
    });
    this.outline();
  }

  outline() {
    this.root.querySelector("svg")?.remove();
    if (!this.map) return;
    const { subject, size } = this.map;
    if (this.hasPixels) { // all outputs have the same outline, and a click on it asks about another pixel
      if (subject.outlines.length) this.part("picture").append(outlines([subject], size, 0, () => {}));
      return;
    }
    const { list } = this.known.subjects ?? { list: [] };
    if (!list.some((one) => one.outlines.length)) return;
    this.part("picture").append(outlines(list, size, this.selected, (one) => this.choose(one)));
  }

  // The canvas has the photo's pixels, or more if the map is finer.
  size() {
    const [photo, canvas, map] = [this.part("photo"), this.part("map"), this.map];
    this.part("shown").style.setProperty("--ratio", photo.naturalWidth / photo.naturalHeight);
    if (map && photo.naturalWidth) {
      const factor = Math.max(1, Math.ceil(map.shape[1] / photo.naturalWidth));
      canvas.width = photo.naturalWidth * factor;
      canvas.height = photo.naturalHeight * factor;
    }
    this.draw();
  }

  showMap(map) {
    this.map = map;
    this.part("picture").classList.toggle("has-map", Boolean(map));
    this.part("facts").replaceChildren(...(map ? facts(map, map.subject) : []));
    this.part("columns").replaceChildren(...(map ? tables(map) : []));
    this.part("columns").hidden = !map?.columns.length;
    this.part("scale").hidden = !map;
    this.part("shown").classList.toggle("picks", this.hasPixels);
    this.probe.ask(map?.size ?? null, (map && this.page.atlases.get(this.atlasKey)?.atlas) ?? null, this.hasPixels);
    if (!map) return delete this.root.dataset.shown;
    const { subject } = map;
    const asked = this.network.answers ? this.state.question : nameOf(subject);
    if (document.activeElement !== this.part("target")) this.part("target").value = asked;
    this.part("map").setAttribute("aria-label", `Map of ${nameOf(subject)}`);
    this.size();
    this.outline();
    this.settle();
    this.tell(this.probe.place);
  }

  draw() {
    const { map, page } = this;
    const photo = this.part("photo");
    if (!map || !page.colors || !photo.naturalWidth) return;
    const { style, cells } = page.look;
    const drawing = { style: style === "heatmap" ? style : "overlay", signed: this.signed };
    const drawn = draw(this.part("map"), map, page.colors, { ...drawing, cells: cells === "1" });
    const against = page.className(this.state.network, this.state.against);
    scale(this.part("scale"), map, page.colors, { ...drawing, names: [nameOf(map.subject), against] });
    this.part("picture").classList.toggle("blank", !drawn);
    this.note(...(drawn ? [] : [blankWords(map.subject, this.signed)]));
  }

  settle() {
    if (this.network.answers) return;
    this.export.follow(this.query({ ...this.page.drawing(), layer: this.layer }), (address) => this.fetch(address));
  }

  // The value at a pixel.
  tell(place) {
    const found = this.map && place && valueAt(this.map, ...place);
    const pixel = place?.map(Math.floor).join(", ");
    this.part("value").textContent = found
      ? `Pixel ${pixel} · cell ${found.column}, ${found.row}: ${found.value.toFixed(2)} × even share`
      : READ;
  }

  step(by) {
    const { list, key } = this.known.subjects ?? { list: [] };
    if (list.length && key === this.listKey) this.choose(list[(this.selected + by + list.length) % list.length]);
  }

  slide(by) {
    const { layers } = this.network;
    const layer = layers[layers.indexOf(this.layer) + by];
    if (layer) this.change({ layer }, false);
  }
}
