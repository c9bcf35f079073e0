package client

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// An upload that is taken up may meet an earlier call of its own, whose last
// bytes were still on their way: it asks again how far that came. Any other
// conflict is an answer.
func TestUploadMeetsItself(t *testing.T) {
	for reason, again := range map[string]bool{"taken_up": true, "offset": true, "directory": false} {
		var calls []string
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			calls = append(calls, fmt.Sprintf("%s %s%s", r.Method, r.URL.Query().Get("offset"), body))
			w.Header().Set("Content-Type", "application/json")
			switch {
			case r.Method == http.MethodGet:
				fmt.Fprint(w, `{"offset":3}`)
			case len(calls) == 1:
				w.WriteHeader(http.StatusConflict)
				fmt.Fprintf(w, `{"error":{"code":"conflict","message":"m","details":{"reason":%q}}}`, reason)
			default:
				fmt.Fprint(w, `{"name":"f"}`)
			}
		}))
		api, err := New(srv.URL, Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = NewGuest(api).Upload(t.Context(), "fuse-a", Upload{Path: "/f", Data: strings.NewReader("0123456789")})
		srv.Close()
		want := "PUT 00123456789"
		if again {
			want += ", GET , PUT 33456789"
		}
		if got := strings.Join(calls, ", "); got != want || (err == nil) != again {
			t.Errorf("%s: %s, %v; want %s", reason, got, err, want)
		}
	}
}
