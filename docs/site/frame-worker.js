// Browsers start no workers for pages that are opened as files. The search then runs in a hidden frame of the page.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inner = this.frame.contentWindow
      inner.postMessage = data =>
        setTimeout(() => this.onmessage?.(new MessageEvent("message", { data: structuredClone(data) })))
      const script = inner.document.createElement("script")
      script.src = url
      script.onload = () => {
        const waiting = this.waiting
        this.waiting = null
        waiting.forEach(data => this.send(data))
      }
      script.onerror = event => this.onerror?.(event)
      inner.document.body.append(script)
    }

    send(data) {
      const inner = this.frame.contentWindow // its classes are not those of the page
      setTimeout(() => inner.dispatchEvent(new inner.MessageEvent("message", { data: inner.structuredClone(data) })))
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.send(data)
    }

    terminate() {
      this.frame.remove()
    }
  }
}
