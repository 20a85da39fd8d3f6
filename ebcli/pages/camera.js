"use strict";

// The browser's camera. Its frames are explained one at a time: the next one is sent when the answer is there.

const CAMERA = "camera"; // in place of a photo
const SENT = 480; // pixels of the longer side of a frame that is explained

const NO_CAMERA = {
  NotAllowedError: "The browser may not use the camera: allow it for this page, and choose Camera again",
  NotFoundError: "This machine has no camera",
  NotReadableError: "Another program uses the camera: end it, and choose Camera again",
};

const camera = {
  // The stream, which the browser asks for; throws a sentence.
  open() {
    return (this.opening ??= this.ask());
  },

  async ask() {
    try {
      if (!navigator.mediaDevices) throw new Error("browsers lend it to pages of this machine and of https only: use ssh -L");
      return await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1280 } } });
    } catch (error) {
      this.opening = null;
      throw new Error(NO_CAMERA[error.name] ?? `The camera cannot be used: ${error.message}`);
    }
  },

  async close() {
    const { opening } = this;
    this.opening = null;
    const stream = await opening?.catch(() => null);
    for (const track of stream?.getTracks() ?? []) track.stop();
  },
};

// What a video shows, JPEG.
function frameOf(video, longest, quality) {
  const [width, height] = [video.videoWidth, video.videoHeight];
  const factor = Math.min(1, longest / Math.max(width, height));
  const canvas = new OffscreenCanvas(Math.round(width * factor), Math.round(height * factor));
  canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
  return canvas.convertToBlob({ type: "image/jpeg", quality });
}

// Until the page is seen: nothing is sent from behind other pages.
async function seen() {
  while (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
}

// Shows a pane what the network sees, until it is given up.
async function watch(pane, signal) {
  const video = pane.part("video");
  const stream = await camera.open();
  if (video.srcObject !== stream) video.srcObject = stream;
  await video.play();
  let [rate, last] = [0, performance.now()];
  while (!signal.aborted) {
    await seen();
    if (!stream.active) throw new Error("The camera has stopped: choose Camera again");
    const body = await frameOf(video, SENT, 0.8);
    const query = pane.query({ layer: pane.layer, photo: "" });
    const answer = decoded(await (await server.fetch(`/frame?${query}`, { body, signal })).arrayBuffer());
    const now = performance.now();
    rate += (1000 / (now - last) - rate) / (rate ? 8 : 1);
    last = now;
    pane.showFrame(answer, rate);
  }
}

// The current frame as a file, as large as the camera has it.
async function keptFrame(video) {
  const time = new Date().toISOString().slice(0, 19).replace("T", " ").replaceAll(":", ".");
  return new File([await frameOf(video, Infinity, 0.92)], `camera ${time}.jpg`);
}
