"use strict";

// What the page asks of its server. The token goes along in a header. It comes behind the "#" of the printed address, which
// browsers send to nobody, and stays in this tab: other ports of the host would get a cookie, too.

const TOKEN = "eb-saliency-token";

const server = {
  token: "",
  closed: () => {}, // called if a request is refused without the right token, or not answered

  // Takes the token from an address or a text; a tab that is loaded again has it still.
  enter(text) {
    const [, token = ""] = text.trim().match(/(?:^|token=)([\w-]+)$/) ?? [];
    try {
      if (token) sessionStorage.setItem(TOKEN, token);
      this.token = sessionStorage.getItem(TOKEN) ?? "";
    } catch {
      this.token = token; // some browsers have no storage
    }
  },

  // An answer; throws the server's sentence, with the rest of what it says.
  async fetch(address, { signal, body } = {}) {
    const headers = { authorization: `Bearer ${this.token}` };
    let answer;
    try {
      answer = await fetch(address, { method: body ? "POST" : "GET", headers, body, signal });
    } catch (error) {
      if (signal?.aborted) throw error;
      this.closed("The server does not answer.");
      throw new Error("The server does not answer");
    }
    if (answer.ok) return answer;
    if (answer.status === 401) this.closed("");
    const { problem, ...more } = await answer.json();
    throw Object.assign(new Error(problem), more);
  },

  // The address of a picture in the page's memory, to be revoked; an element cannot send the header.
  async picture(address, signal) {
    return URL.createObjectURL(await (await this.fetch(address, { signal })).blob());
  },
};
