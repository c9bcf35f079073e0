package client

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
)

// What is asked for again, and what was an answer.
func TestIsFinalCut(t *testing.T) {
	answer := func(status int, reason string) error {
		return fmt.Errorf("copy: %w", &Error{Status: status, Details: map[string]string{fleet.DetailReason: reason}})
	}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{errors.New("connection reset"), false},
		{answer(http.StatusBadGateway, ""), false},
		{answer(http.StatusServiceUnavailable, ""), false},
		{answer(http.StatusServiceUnavailable, "disk_full"), true},
		{answer(http.StatusConflict, ""), true},
		{answer(http.StatusConflict, "offset"), false},
		{answer(http.StatusConflict, "taken_up"), false},
		{answer(http.StatusConflict, "unadopted"), false},
		{answer(http.StatusNotFound, ""), true},
	} {
		if got := isFinalCut(c.err); got != c.want {
			t.Errorf("%v is final: %v, want %v", c.err, got, c.want)
		}
	}
}
