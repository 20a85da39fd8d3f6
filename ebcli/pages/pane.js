"use strict";

// One photo, one network and their map.

const IDLE = 300; // ms until the other layers are asked for, or twice as long as one layer took

const READ = `${matchMedia("(pointer: coarse)").matches ? "Tap" : "Point at"} the picture to read values`;

const FIELDS = ["photo", "network", "question", "target", "against", "box", "pixel", "voxel", "layer", "method"];

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
      this.root.addEventListener(event, () => this.page.activate(this));
    }
    this.part("network").addEventListener("change", ({ target }) => {
      this.change({ network: target.value, target: "", against: "", box: "", pixel: "", voxel: "", layer: "" });
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
    const hoped = () => this.willKnow();
    const words = (place) => this.words(place);
    this.probe = new Probe(this.part("shown"), { moved, kept, picked, hoped, words, isDark: false });
    this.part("whole").addEventListener("click", () => this.change({ pixel: "", voxel: "" }));
    this.part("photo").addEventListener("load", () => this.size());
    this.part("release").addEventListener("click", () => this.change({ target: "" }));
    this.part("keep").addEventListener("click", async () => upload([await keptFrame(this.part("video"))], false));
  }

  close() {
    this.giveUp?.abort();
    this.looking?.giveUp.abort();
    URL.revokeObjectURL(this.part("photo").src);
    this.root.remove();
  }

  get network() {
    return this.page.status.networks[Number(this.state.network) || 0];
  }

  // Whether the camera is in place of a photo.
  get isLive() {
    return this.state.photo === CAMERA;
  }

  // Whether the network returns a value for each pixel, and so a click asks about one.
  get hasPixels() {
    return this.network.task === "maps of values" && !this.isVolume;
  }

  // Whether there are three planes in place of a photo, and a click moves them.
  get isVolume() {
    return this.network.volumes;
  }

  // Whether the camera can be in place of a photo.
  get takesCamera() {
    return !this.isVolume && !this.network.answers;
  }

  // Whether the planes of a volume are one below the other.
  get isStacked() {
    return Boolean(this.isVolume) && this.part("shown").clientWidth < STACKED;
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
    if (this.looking?.key !== this.atlasKey) this.looking?.giveUp.abort();
    if (this.isLive) return watch(this, signal).catch((error) => signal.aborted || this.problem(error));
    const isFirst = this.hasAtlas; // the map of the likeliest class, without a list
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
      await this.photo;
      const map = this.known.maps.layers.get(this.layer);
      if (map.planes) await this.showPlanes(map);
      if (signal.aborted) return;
      this.showAnswer(map);
      if (isFirst) await this.find(signal);
      this.list(this.map.subject);
      this.later = setTimeout(() => this.askRest(signal), this.probe.isWaiting ? 0 : Math.max(IDLE, 2 * (performance.now() - start)));
    } catch (error) {
      if (!signal.aborted) this.problem(error);
    }
  }

  showAnswer(map) {
    this.wait(false);
    this.note();
    this.showMap(map);
    this.remember();
    this.root.dataset.shown = this.query({ layer: this.layer });
  }

  // The state has an answer: the address follows.
  remember() {
    this.kept = { ...this.state };
    this.page.changed(this.isStep);
    this.isStep = false;
  }

  problem(error) {
    if (error.near) this.unknown(error);
    else this.failed(error.message);
  }

  isReady() {
    const { photo } = this.state;
    const { name, ready, problem } = this.network;
    this.part("picture").classList.toggle("has-photo", photo !== "");
    if (problem) this.failed(problem);
    else if (photo === "") this.failed(this.isVolume ? "Drop a volume here" : "Drop a photo here, choose one above, or choose Camera");
    else if (this.isLive && !this.takesCamera) this.failed(`${name} cannot watch the camera: choose a ${this.isVolume ? "volume" : "photo"}`);
    else if (!ready) {
      this.wait(true, "");
      this.note(`Loading ${name} …`);
    }
    return ready && photo !== "" && (this.takesCamera || !this.isLive);
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
      const list = key === network ? [] : await (await server.fetch(`/subjects?${key}`, { signal })).json();
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
      const { answer, maps, subjects, size } = decoded(await (await server.fetch(`/maps?${key}`, { signal })).arrayBuffer());
      const list = subjects.map((subject, index) => Object.assign(subject, { index }));
      this.known.answer = { key, text: answer, maps: maps.map((map, at) => Object.assign(map, { subject: list[at], size })) };
      this.known.subjects = { key: this.listKey, list };
    }
    const { maps } = this.known.answer;
    const map = maps[Number(this.state.target)] ?? maps[0];
    this.state.target = String(map.subject.index);
    this.fillAnswer();
    this.showAnswer(map);
  }

  // The answer, in which each word that has a map shows it when it is pointed at.
  fillAnswer() {
    const found = this.part("found");
    if (this.answered !== this.known.answer || !found.querySelector(".answer")) {
      this.answered = this.known.answer;
      this.listed = null; // what was there before is gone
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
    const voxel = this.state.voxel || (maps.voxel ?? ""); // all layers have the planes of the first one
    const address = `/maps?${this.query({ layer, voxel, stacked: this.isStacked ? "1" : "" })}`;
    const { subjects: [subject], size, picture, volume, ...answer } = decoded(await (await server.fetch(address, { signal })).arrayBuffer());
    for (const map of answer.maps) maps.layers.set(map.layer, Object.assign(map, { subject, size, picture, volume }));
    maps.voxel = volume?.voxel.join();
    if (this.network.texts) return;
    this.state.target = String(subject.index);
    maps.key = this.query({ layer: "" });
  }

  // Whether the classes at each place can be compared.
  get hasAtlas() {
    return this.network.task === "classification" && !this.network.texts && !this.isLive && !this.isVolume;
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
  async askRest(signal) {
    try {
      await this.look();
      if (!this.method.picture && this.known.maps.layers.size < this.network.layers.length) await this.ask("every", signal);
    } catch {
      // one by one may do
    }
  }

  // Asks for the atlas of the photo, once, also while its maps are asked for.
  look() {
    const key = this.atlasKey;
    if (!this.hasAtlas || this.page.atlases.has(key)) return null;
    if (this.looking?.key !== key || this.looking.giveUp.signal.aborted) {
      const giveUp = new AbortController();
      this.looking = { key, giveUp, done: this.readAtlas(key, giveUp.signal) };
      this.looking.done.catch(() => {
        giveUp.abort();
        if (key === this.atlasKey) this.probe.taken();
      });
    }
    return this.looking.done;
  }

  async readAtlas(key, signal) {
    const { photo, network } = this.state;
    const address = `/atlas?${new URLSearchParams({ photo, network })}`;
    const { atlas, maps, subjects, size } = decoded(await (await server.fetch(address, { signal })).arrayBuffer());
    const known = maps.map((map, at) => [String(subjects[at].index), Object.assign(map, { subject: subjects[at], size })]);
    this.page.atlases.set(key, { atlas: new Atlas(atlas), maps: new Map(known) });
    if (key === this.atlasKey) this.probe.ask(size, this.page.atlases.get(key).atlas);
  }

  // Whether it will be known what is at a place that was chosen before; what is known of it is asked for now.
  willKnow() {
    const { ready, problem } = this.network;
    if (problem || this.isLive || this.isVolume || this.state.photo === "") return false;
    if (ready) this.look();
    return this.hasAtlas || !this.map;
  }

  choose(subject, isStep = true) {
    const target = this.network.texts ? subject.name : String(subject.index);
    this.state.target = target;
    this.state.box = subject.box && !this.isLive ? subject.box.map((number) => Number(number.toPrecision(8))).join() : "";
    if (isStep) this.change({});
  }

  // The planes of a volume move to a point, or a pixel of a map of values is explained instead of the mean of all.
  pick(place) {
    if (this.isVolume) return this.movePlanes(voxelAt(this.map, ...place));
    const pixel = place.map(Math.floor);
    if (valueAt(this.map, pixel[0] + 0.5, pixel[1] + 0.5)) this.change({ pixel: pixel.join() });
    else this.note("This place is outside what the network sees of the photo");
  }

  movePlanes(voxel) {
    if (voxel) this.change({ voxel: voxel.join() });
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
    this.part("title").textContent = this.isLive ? "Camera" : (photos[state.photo] ?? "");
    this.part("title").hidden = state.photo === "";
    this.part("picture").classList.toggle("live", this.isLive);
    for (const name of ["watching", "release"]) this.part(name).hidden = !this.isLive;
    this.part("release").hidden ||= state.target === "";
    this.part("export").hidden = this.isLive || this.network.answers;
    if (this.shownKey !== this.photoKey) this.showPhoto();
    this.part("target").placeholder = this.network.texts ? "any text" : "name or index";
    this.root.classList.toggle("answers", this.network.answers);
    this.root.querySelector(".ask label").firstChild.data = this.network.answers ? "Question " : "Class ";
    if (this.network.answers) {
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
    this.fillWhere();
    this.part("shown").setAttribute("aria-label", `${this.isVolume ? "Planes" : "Photo"}. The arrow keys move a point.`);
    this.part("shown").classList.toggle("volume", Boolean(this.isVolume));
    this.part("shown").classList.toggle("stacked", this.isStacked);
  }

  // Which pixel or voxel is asked about.
  fillWhere() {
    const { pixel, voxel } = this.state;
    const at = this.isVolume ? voxel : pixel;
    this.part("where").hidden = !this.hasPixels && !this.isVolume && at === "";
    this.part("whole").hidden = at === "";
    this.part("whole").textContent = this.isVolume ? "Maximum of the map" : "Whole photo";
    const texts = this.isVolume
      ? [`Planes through voxel ${voxel.replaceAll(",", ", ")}; the downloaded picture has those through the maximum`, "Planes through the maximum of the map: click on a place to move them"]
      : [`At pixel ${pixel.replace(",", ", ")}`, "The mean of all pixels: click on the photo for the value of one"];
    this.root.querySelector(".where span").textContent = texts[at === "" ? 1 : 0];
  }

  // What the picture depends on; the planes of a volume come with its map.
  get shownKey() {
    return this.isVolume && !this.isLive ? `volume ${this.state.photo}` : this.state.photo;
  }

  // Loads the photo, which elements cannot do: they send no token.
  showPhoto() {
    const image = this.part("photo");
    const key = (this.photoKey = this.shownKey);
    const { photo } = this.state;
    this.showMap(null);
    URL.revokeObjectURL(image.src);
    image.removeAttribute("src");
    image.alt = "";
    this.photo = null;
    if (photo === "" || this.isLive || this.isVolume) return;
    const load = async () => {
      const address = await server.picture(`/photo?${new URLSearchParams({ photo })}`);
      if (key !== this.photoKey) return URL.revokeObjectURL(address);
      image.src = address;
      await image.decode().catch(() => Promise.reject(new Error("This photo cannot be shown")));
    };
    this.photo = load();
    this.photo.catch((error) => {
      if (key !== this.photoKey) return;
      this.photoKey = null;
      this.failed(error.message);
    });
  }

  // The planes of a volume, which come with its map.
  async showPlanes(map) {
    const image = this.part("photo");
    const address = `data:image/jpeg;base64,${map.picture}`;
    image.alt = planeWords(map);
    if (image.src === address) return;
    image.src = address;
    await image.decode();
  }

  // What the network sees in a frame of the camera. What somebody points at stays where it is.
  showFrame({ size, maps: [map], subjects: [subject], likeliest }, rate) {
    const isNew = FIELDS.some((name) => this.kept[name] !== this.state[name]);
    this.wait(false);
    this.note();
    const isPointed = this.part("found").matches(":hover, :focus-within");
    const same = (one) => (other) => other.index === one.index && other.name === one.name;
    let list = subject && !likeliest.some(same(subject)) ? [...likeliest, subject] : likeliest;
    if (isPointed && this.known.subjects) list = this.known.subjects.list.map((one) => list.find(same(one)) ?? one);
    this.known.subjects = { key: this.listKey, list };
    this.showMap(map ? Object.assign(map, { subject, size }) : null);
    if (!map) this.note(`${this.network.name} finds nothing in this picture`);
    this.fillSubjects();
    this.part("rate").textContent = `${rate.toFixed(rate < 10 ? 1 : 0)} frames per second`;
    if (isNew) this.remember();
    this.root.dataset.shown = this.query({ layer: this.layer });
  }

  get selected() {
    const { target, box } = this.state;
    const { list } = this.known.subjects;
    if (this.isLive && target === "") return list.findIndex(({ index }) => index === this.map?.subject.index);
    const near = (one) => !box || (one.box && box.split(",").every((n, i) => Math.abs(n - one.box[i]) < 0.01));
    return list.findIndex((one) => (this.network.texts ? one.name : String(one.index)) === target && near(one));
  }

  fillSubjects() {
    if (this.network.answers) return; // its words are in the answer
    this.part("found").classList.remove("stale");
    const { list } = this.known.subjects;
    const listed = JSON.stringify(list.map(({ index, name }) => [index, name]));
    if (listed === this.listed) return this.refillSubjects(list);
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
    const choose = (value) => this.choose(this.known.subjects.list[value]);
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

  // The same subjects as before with other scores: they stay under the pointer, and keep the focus.
  refillSubjects(list) {
    const { children } = this.part("found").firstElementChild;
    list.forEach((subject, at) => {
      const tab = children[at];
      tab.setAttribute("aria-selected", at === this.selected);
      tab.tabIndex = at === Math.max(0, this.selected) ? 0 : -1;
      tab.querySelector(".score").textContent = number(subject.score);
      if (!subject.is_value) tab.querySelector("meter").value = subject.score;
    });
    this.outline();
  }

  outline() {
    if (this.isLive && this.part("shown").matches(":active")) return; // a click on an outline needs it until its end
    this.root.querySelector("svg")?.remove();
    if (!this.map || this.map.planes) return;
    const { subject, size } = this.map;
    if (this.hasPixels) { // all outputs have the same outline, and a click on it asks about another pixel
      if (subject.outlines.length) this.part("picture").append(outlines([subject], size, 0, () => {}));
      return;
    }
    const place = this.hasAtlas ? null : this.probe.taken();
    const { list } = this.known.subjects ?? { list: [] };
    if (!list.some((one) => one.outlines.length)) return;
    const drawn = outlines(list, size, this.selected, (one) => this.choose(one));
    this.part("picture").append(drawn);
    if (place) [...drawn.children].findLast((path) => path.isPointInFill(new DOMPoint(...place)))?.dispatchEvent(new Event("click"));
  }

  // The canvas has the photo's pixels, or more if the map is finer.
  size() {
    const { map, shownSize: [width, height] } = this;
    const canvas = this.part("map");
    if (width) this.part("shown").style.setProperty("--ratio", width / height);
    if (width && !map) this.probe.ask([width, height], null); // a place can be chosen before there is a map
    if (width && map) {
      const factor = map.planes ? 1 : Math.max(1, Math.ceil(map.shape[1] / width));
      canvas.width = width * factor;
      canvas.height = height * factor;
    }
    this.draw();
  }

  // The width and height of the photo on the page, or of the frame; 0 if it is not there.
  get shownSize() {
    const { naturalWidth, naturalHeight } = this.part("photo");
    return this.isLive ? (this.map?.size ?? [0, 0]) : [naturalWidth, naturalHeight];
  }

  showMap(map) {
    this.map = map;
    this.part("picture").classList.toggle("has-map", Boolean(map));
    const isRead = map && this.part("facts").matches(":hover, :focus-within");
    if (!isRead || !this.isLive) this.part("facts").replaceChildren(...(map ? facts(map, map.subject) : []));
    this.part("columns").replaceChildren(...(map ? tables(map) : []));
    this.part("columns").hidden = !map?.columns.length;
    this.part("scale").hidden = !map;
    const picks = this.hasPixels || Boolean(map?.planes);
    this.part("shown").classList.toggle("picks", picks);
    this.probe.ask(map?.size ?? null, (map && this.page.atlases.get(this.atlasKey)?.atlas) ?? null, picks);
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
    if (!map || !page.colors || !this.shownSize[0]) return;
    const { style, cells } = page.look;
    const drawing = { style: style === "heatmap" ? style : "overlay", signed: this.signed };
    const drawn = draw(this.part("map"), map, page.colors, { ...drawing, cells: cells === "1" });
    const against = page.className(this.state.network, this.state.against);
    scale(this.part("scale"), map, page.colors, { ...drawing, names: [nameOf(map.subject), against] });
    this.part("picture").classList.toggle("blank", !drawn);
    this.note(...(drawn ? [] : [blankWords(map.subject, this.signed)]));
  }

  settle() {
    if (!this.isLive && !this.network.answers) this.export.follow(this.query({ ...this.page.drawing(), layer: this.layer }));
  }

  // The value at a pixel.
  tell(place) {
    const found = this.map && place && valueAt(this.map, ...place);
    const cell = found && !this.map.planes ? ` · cell ${found.column}, ${found.row}` : "";
    this.part("value").textContent = found ? `${this.words(place)}${cell}: ${found.value.toFixed(2)} × even share` : READ;
  }

  // What a point is called.
  words(place) {
    if (!this.map?.planes) return pixelWords(place);
    const voxel = voxelAt(this.map, ...place);
    return voxel ? `Voxel ${voxel.join(", ")}` : "Between planes";
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
