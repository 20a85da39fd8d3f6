"use strict";

// The enlarged view of one image, with its details.

class Viewer {
  constructor(dialog, grid) {
    this.dialog = dialog;
    this.grid = grid;
    part("previous").addEventListener("click", () => this.go(this.index - 1));
    part("next").addEventListener("click", () => this.go(this.index + 1));
    part("close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close(); // outside the content
    });
    dialog.addEventListener("close", () => {
      grid.refresh(this.index); // the class may have changed
      grid.focus(this.index);
    });
    dialog.addEventListener("keydown", (event) => this.onKey(event));
  }

  open(index) {
    this.go(index);
    this.dialog.showModal();
  }

  go(index) {
    if (index < 0 || index >= this.grid.shown.length) return;
    if (this.dialog.open && index !== this.index) this.grid.refresh(this.index);
    this.index = index;
    this.fill();
  }

  onKey(event) {
    if (event.target.matches("input") || event.ctrlKey || event.metaKey || event.altKey) return;
    const one = this.grid.shown[this.index];
    const image = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const map = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (image) this.go(this.index + image);
    else if (map && one.map) {
      const maps = one.outcome.maps;
      one.map = maps[(maps.indexOf(one.map) + map + maps.length) % maps.length];
      this.fill();
    } else return;
    event.preventDefault();
  }

  fill() {
    const one = this.grid.shown[this.index];
    const { image, outcome, map } = one;
    part("viewer-name").textContent = image.name;
    part("position").textContent = `${this.index + 1} of ${this.grid.shown.length}`;
    // disabling a button would remove its focus, and the keys with it
    part("previous").setAttribute("aria-disabled", this.index === 0);
    part("next").setAttribute("aria-disabled", this.index === this.grid.shown.length - 1);
    const stage = this.dialog.querySelector(".stage");
    stage.id = "stage";
    stage.replaceChildren(picture(image, outcome, map));
    part("viewer-answer").hidden = outcome.answer === undefined;
    if (outcome.answer !== undefined) part("viewer-answer").replaceChildren(...answerOf(outcome, map));
    part("viewer-outcomes").replaceChildren(...this.outcomes(one));
    part("viewer-classes").replaceChildren(...this.classes(one));
    const [model, weights] = data.models[outcome.model];
    facts(part("viewer-facts"), [
      ["Model", model],
      ["Weights", weights],
      ["Layer", data.layers[outcome.layer] || "the image itself"],
      ["Method", data.methods[outcome.method]],
      ...(isWrong(outcome) ? [["Prediction", "wrong"]] : []),
      ...(map?.sufficiency ? [["Sufficiency", sufficiencyOf(map.sufficiency)]] : []),
      ["Time", `${outcome.seconds.toFixed(2)} s`],
    ]);
    const link = part("viewer-result");
    link.hidden = !map?.result;
    if (map?.result) link.href = map.result;
  }

  // Layers and methods, if there are several.
  outcomes(one) {
    const { image, outcome } = one;
    if (image.outcomes.length < 2) return [];
    const options = image.outcomes.map((other, value) => {
      const title = `${data.layers[other.layer]} · ${data.methods[other.method]}`;
      return { value, content: [title], title };
    });
    const choose = (value) => {
      one.outcome = image.outcomes[value];
      one.map = one.outcome.maps.find((map) => map.class === one.map?.class) ?? one.outcome.maps[0] ?? null;
      this.fill();
      part("viewer-outcomes").querySelector("[aria-selected=true]").focus();
    };
    return [tabs("Layer and method", options, image.outcomes.indexOf(outcome), choose, { controls: "stage" })];
  }

  classes(one) {
    const { outcome } = one;
    if (!outcome.maps.length) return [];
    const bar = (label, value) => {
      const meter = element("meter", { min: 0, max: 1, value: value ?? 0, "aria-label": label });
      return element("span", { class: "measure" }, label, meter, element("span", {}, number(value)));
    };
    const options = outcome.maps.map((map, value) => ({
      value,
      content: [
        element("strong", {}, nameOf(data.classes[map.class])),
        element("small", {}, `${isAnswers ? "" : data.classes[map.class].index}${map.blank ? ", blank" : ""}`),
        element("small", {}, roleOf(outcome, map)),
        map.value === null ? bar("score", map.score) : element("span", { class: "measure" }, `value ${number(map.value)}`),
        ...(map.mass === null ? [] : [bar(massName, map.mass)]),
        ...map.told.slice(0, 1).map((words) => element("small", {}, words)),
      ],
    }));
    const choose = (value) => {
      one.map = outcome.maps[value];
      this.fill();
      part("viewer-classes").querySelector("[aria-selected=true]").focus();
    };
    const settings = { vertical: true, controls: "stage" };
    return [tabs("Class", options, outcome.maps.indexOf(one.map), choose, settings)];
  }
}

function sufficiencyOf({ words, gradient }) {
  return `${words}. In the order of the gradient, ${Math.round(100 * gradient)}% is needed.`;
}

function facts(list, pairs) {
  list.replaceChildren(...pairs.flatMap(([term, text]) => [element("dt", {}, term), element("dd", {}, text)]));
}
