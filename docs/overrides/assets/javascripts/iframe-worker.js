// Browsers let no page that is a file start a worker, so that the search would find nothing. Here a hidden frame runs the worker's script.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const element = document.createElement("iframe")
      element.hidden = true
      this.ready = new Promise((done) => {
        element.onload = () => done(this.begin(element.contentWindow, new URL(url, location.href).href))
      })
      document.body.append(element)
    }

    begin(frame, url) {
      frame.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const load = (src) => new Promise((done) => {
        const script = frame.document.createElement("script")
        script.onload = script.onerror = () => done(frame)
        script.src = src
        frame.document.body.append(script)
      })
      frame.importScripts = (...urls) => urls.reduce((before, next) => before.then(() => load(next)), Promise.resolve())
      return load(url)
    }

    postMessage(data) {
      this.ready.then((frame) => frame.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
