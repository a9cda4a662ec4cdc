// What the servers in Node share: options, JSON bodies, and routes {path: async (body, response, request) => …}.
import http from "node:http";

export const option = (name) => (process.argv.includes(`--${name}`) ? process.argv[process.argv.indexOf(`--${name}`) + 1] : undefined);

async function bodyOf(request) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  return JSON.parse(Buffer.concat(chunks).toString());
}

export const sendJson = (response, status, value) =>
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));

export function serve(routes) {
  const server = http.createServer(async (request, response) => {
    const route = routes[request.url];
    if (request.method !== "POST" || !route) return sendJson(response, 404, { error: "not found" });
    try {
      await route(await bodyOf(request), response, request);
    } catch (error) {
      sendJson(response, 500, { error: error.message });
    }
  });
  server.listen(Number(option("port")), "127.0.0.1");
}
