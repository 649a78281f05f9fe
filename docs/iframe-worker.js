// Pages that were opened as files may not start a worker, so the search of the site runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(script) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.srcdoc = `<script src="${script}"></script>`
      this.inside = new Promise((ready) => {
        frame.onload = () => ready(frame.contentWindow)
      })
      document.documentElement.append(frame)
      this.inside.then((inside) => {
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      })
    }

    async postMessage(data) {
      const inside = await this.inside
      inside.dispatchEvent(new MessageEvent("message", { data }))
    }
  }
}
