// Browsers start no workers for pages that are opened as files. The search then runs in a hidden frame of the page.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inner = this.frame.contentWindow
      inner.postMessage = data => this.receive(data)
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

    receive(data) {
      const event = new MessageEvent("message", { data })
      this.onmessage?.(event)
      this.dispatchEvent(event)
    }

    send(data) {
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
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
