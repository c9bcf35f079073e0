package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Error is an answer other than success. Code is empty when the answer was not
// Fuse's, from a proxy for instance.
type Error struct {
	Status     int
	Code       string
	Message    string
	Details    map[string]string
	RequestID  string
	RetryAfter time.Duration
}

func (e *Error) Error() string {
	if e.Code == "" {
		return fmt.Sprintf("unexpected answer %d: %s", e.Status, e.Message)
	}
	return e.Message
}

// CodeOf returns the error code that the server gave, or "".
func CodeOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// maxErrorBody bounds what is read of an answer that is no success.
const maxErrorBody = 64 << 10

func errorFrom(resp *http.Response) error {
	e := &Error{Status: resp.StatusCode, RequestID: resp.Header.Get("X-Request-ID")}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	var body gen.ErrorBody
	if json.Unmarshal(raw, &body) == nil && body.Error.Code != "" {
		e.Code, e.Message, e.Details = body.Error.Code, body.Error.Message, body.Error.Details
		return e
	}
	if to := resp.Header.Get("Location"); to != "" && resp.StatusCode/100 == 3 {
		e.Message = "it redirects to " + firstLine(to) + "; use that address"
		return e
	}
	e.Message = firstLine(string(raw))
	if e.Message == "" {
		e.Message = http.StatusText(resp.StatusCode)
	}
	return e
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return strings.ToValidUTF8(line[:min(len(line), 200)], "")
}
