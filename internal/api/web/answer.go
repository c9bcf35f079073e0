package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/state"
)

// WriteJSON answers with a document.
func WriteJSON(w http.ResponseWriter, status int, doc any) {
	raw, err := json.Marshal(doc)
	if err != nil {
		panic(fmt.Errorf("encode an answer: %w", err)) // answered as an internal error
	}
	WriteRaw(w, status, append(raw, '\n'))
}

// WriteRaw answers with JSON that is encoded already.
func WriteRaw(w http.ResponseWriter, status int, raw []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(raw)))
	w.WriteHeader(status)
	_, _ = w.Write(raw) // the caller left
}

// Location is the path of an object.
func Location(kind, id string) string { return "/v1/" + kind + "/" + url.PathEscape(id) }

// Keeper makes repeated requests safe.
type Keeper interface {
	Do(ctx context.Context, call idempotency.Call, run func(context.Context, *state.Idempotency) (idempotency.Answer, error)) (idempotency.Answer, error)
}

// Once runs a request through the keeper of Idempotency-Keys. Without the
// header it just runs.
func Once(w http.ResponseWriter, r *Request, keeper Keeper, policy idempotency.Unfinished,
	run func(context.Context, *state.Idempotency) (idempotency.Answer, error),
) (idempotency.Answer, error) {
	call := idempotency.Call{
		Owner: r.Principal().Name, Key: r.Header.Get("Idempotency-Key"), Method: r.Method, Path: r.URL.RequestURI(), Unfinished: policy,
	}
	if call.Key != "" {
		call.BodyHash = r.BodyHash()
	}
	answer, err := keeper.Do(r.Context(), call, run)
	if err == nil && answer.Replayed {
		w.Header().Set("Idempotency-Replayed", "true")
	}
	return answer, err
}

// Writer remembers what was answered.
type Writer struct {
	http.ResponseWriter
	Status       int
	Stream       bool          // the answer has no length and no end of its own
	WriteTimeout time.Duration // restarts the write deadline at the first byte; zero leaves it
	// Leads is asked once, when the answer begins. Its error is answered by Refuse
	// instead of what was to be said: that may be old by now. Nil: not asked.
	Leads  func() error
	Refuse func(error)

	muted bool // the answer was replaced
}

// WriteHeader implements http.ResponseWriter.
func (w *Writer) WriteHeader(status int) {
	if w.muted {
		return
	}
	if leads := w.Leads; w.Status == 0 && leads != nil {
		w.Leads = nil
		if err := leads(); err != nil {
			w.Refuse(err)
			w.muted = true
			return
		}
	}
	if w.Status == 0 {
		w.Status = status
		if w.WriteTimeout > 0 {
			w.SetWriteDeadline(time.Now().Add(w.WriteTimeout))
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *Writer) Write(p []byte) (int, error) {
	if w.Status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.muted {
		return len(p), nil
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController through.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// SetReadDeadline has no effect on writers without deadlines, in tests.
func (w *Writer) SetReadDeadline(t time.Time) {
	_ = http.NewResponseController(w.ResponseWriter).SetReadDeadline(t)
}

// SetWriteDeadline has no effect on writers without deadlines, in tests.
func (w *Writer) SetWriteDeadline(t time.Time) {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(t)
}
