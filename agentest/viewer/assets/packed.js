// Data inside the page, gzip and base64, unpacked when it is opened.

export function present(id) {
  return document.getElementById(id) !== null;
}

export async function unpack(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
