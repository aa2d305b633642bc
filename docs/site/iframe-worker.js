// The search runs in a Worker. A page that is opened from a file may not start one: there a hidden frame does its work.
"use strict";

// As messages to and from a Worker: a copy, when the sender has done its work.
function later(data, take) {
  const copy = structuredClone(data);
  setTimeout(() => take(copy));
}

class FrameWorker {
  constructor(url) {
    this.waiting = [];
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    this.frame.srcdoc = "";
    this.frame.addEventListener("load", () => this.begin(url), {once: true});
    document.body.append(this.frame);
  }

  begin(url) {
    this.inside = this.frame.contentWindow;
    this.inside.postMessage = (data) => later(data, (copy) => this.onmessage?.({data: copy}));
    const script = this.inside.document.createElement("script");
    script.src = url;
    script.addEventListener("load", () => {
      this.ready = true;
      for (const data of this.waiting) this.postMessage(data);
    });
    script.addEventListener("error", (event) => this.onerror?.(event));
    this.inside.document.head.append(script);
  }

  postMessage(data) {
    if (this.ready) later(data, (copy) => this.inside.onmessage({data: copy}));
    else this.waiting.push(data);
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
