// The shop's agent as a Go service: JSON in and out, sessions in memory. Its tools are its own affair.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

type question struct {
	Text    string `json:"text"`
	Session string `json:"session"`
}

type shop struct {
	sync.Mutex
	words map[string]string
}

var stock = map[string]int{"lamp": 3, "chair": 0, "sofa": 12}

func (s *shop) answer(session, text string) (string, error) {
	fields := strings.Fields(text + " . .")
	switch word, first := strings.ToLower(fields[0]), fields[1]; word {
	case "stock":
		return fmt.Sprintf("in_stock: %d", stock[first]), nil
	case "reserve":
		return fmt.Sprintf("Reserved: R-%s-%s", first, fields[2]), nil
	case "search":
		return fmt.Sprintf("Found: %s", first), nil
	case "remember":
		s.Lock()
		defer s.Unlock()
		s.words[session] = first
		return "I will remember " + first + ".", nil
	case "recall":
		s.Lock()
		defer s.Unlock()
		if word, known := s.words[session]; known {
			return word, nil
		}
		return "nothing", nil
	case "slow":
		seconds, _ := strconv.ParseFloat(first, 64)
		time.Sleep(time.Duration(seconds * float64(time.Second)))
		return "Waited " + first + " seconds.", nil
	case "fail":
		return "", fmt.Errorf("the shop is on fire")
	}
	return "You said: " + text, nil
}

func (s *shop) chat(w http.ResponseWriter, r *http.Request) {
	var q question
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if q.Session == "" {
		q.Session = r.Header.Get("X-Session-Id")
	}
	if q.Session == "" {
		q.Session = fmt.Sprintf("go-%d", time.Now().UnixNano())
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Session-Id", q.Session)
	text, err := s.answer(q.Session, q.Text)
	if err != nil {
		json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": err.Error()}})
		return
	}
	json.NewEncoder(w).Encode(map[string]any{"answer": map[string]any{"text": text}, "session": q.Session})
}

func main() {
	port := flag.Int("port", 8132, "")
	flag.Parse()
	s := &shop{words: map[string]string{}}
	http.HandleFunc("/v1/chat", s.chat)
	http.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	log.Fatal(http.ListenAndServe(fmt.Sprintf("127.0.0.1:%d", *port), nil))
}
