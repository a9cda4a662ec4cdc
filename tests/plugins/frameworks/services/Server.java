// The shop's agent as a Java service: a form in, JSON out, the session in a cookie. Its tools are its own affair.
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;

public class Server {
    static final Map<String, Integer> STOCK = Map.of("lamp", 3, "chair", 0, "sofa", 12);
    static final Map<String, String> WORDS = new ConcurrentHashMap<>();

    static String answer(String session, String text) throws Exception {
        String[] words = (text + " . .").split(" ");
        switch (words[0].toLowerCase()) {
            case "stock": return "in_stock: " + STOCK.getOrDefault(words[1], 0);
            case "reserve": return "Reserved: R-" + words[1] + "-" + words[2];
            case "search": return "Found: " + words[1];
            case "remember": WORDS.put(session, words[1]); return "I will remember " + words[1] + ".";
            case "recall": return WORDS.getOrDefault(session, "nothing");
            case "slow": Thread.sleep((long) (1000 * Double.parseDouble(words[1]))); return "Waited " + words[1] + " seconds.";
            case "fail": throw new IllegalStateException("the shop is on fire");
            default: return "You said: " + text;
        }
    }

    static String question(HttpExchange exchange) throws IOException {
        String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
        for (String pair : body.split("&")) {
            if (pair.startsWith("question=")) return URLDecoder.decode(pair.substring(9), StandardCharsets.UTF_8);
        }
        return null;
    }

    static String session(HttpExchange exchange) {
        String cookies = exchange.getRequestHeaders().getFirst("Cookie");
        for (String cookie : cookies == null ? new String[0] : cookies.split("; ")) {
            if (cookie.startsWith("JSESSIONID=")) return cookie.substring(11);
        }
        String made = UUID.randomUUID().toString();
        exchange.getResponseHeaders().add("Set-Cookie", "JSESSIONID=" + made + "; Path=/; HttpOnly");
        return made;
    }

    static void send(HttpExchange exchange, int status, String type, String text) throws IOException {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        exchange.getResponseHeaders().set("Content-Type", type);
        exchange.sendResponseHeaders(status, bytes.length);
        exchange.getResponseBody().write(bytes);
        exchange.close();
    }

    static void ask(HttpExchange exchange) throws IOException {
        try {
            String question = question(exchange);
            if (question == null) { send(exchange, 400, "text/plain", "question is missing"); return; }
            String said = answer(session(exchange), question).replace("\\", "\\\\").replace("\"", "\\\"");
            send(exchange, 200, "application/json", "{\"answer\": \"" + said + "\"}");
        } catch (Exception error) {
            send(exchange, 500, "text/plain", error.getMessage());
        }
    }

    public static void main(String[] args) throws IOException {
        int port = args.length > 1 ? Integer.parseInt(args[1]) : 8133;
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
        server.createContext("/ask", Server::ask);
        server.createContext("/health", exchange -> send(exchange, 200, "text/plain", "ok"));
        server.setExecutor(Executors.newCachedThreadPool());
        server.start();
    }
}
