package postgres

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// However an address is wrong, no part of its password is in the error.
func TestABadAddressKeepsItsPassword(t *testing.T) {
	for _, test := range []struct{ url, text string }{
		{"postgres://u:wordone@wordtwo@h:none/d", "invalid port"},
		{"postgres://u:wordone/wordtwo@h/d", "invalid port"},
		{"postgres://u:wordone%wordtwo@h/d", "percent"},
		{"postgres://u:wordone wordtwo@h/d", "spaces"},
		{"postgres://u@h/d?password=wordone%&x=wordtwo@&sslmode=bad", "DATABASE_URL"},
		{"host=h password = wordone port=abc", "invalid port"},
		{`host=h password='wordone\' wordtwo' port=abc`, "invalid port"},
		{"postgres://u:wordone@h/d?sslmode=verify-full&sslrootcert=/nowhere/ca.pem", "/nowhere/ca.pem"},
	} {
		j := New(Config{URL: test.url})
		_, err := j.Acquire(t.Context(), state.Candidate{Name: "x"})
		all := fmt.Sprintf("%v %+v", err, err)
		var fe *fleet.Error
		if !errors.As(err, &fe) || fe.Code != fleet.CodeInvalidArgument || fe.Details[fleet.DetailRemedy] == "" {
			t.Errorf("%s: %v is no refusal with a remedy", test.url, err)
		}
		if !strings.Contains(all, test.text) || strings.Contains(all, "wordone") || strings.Contains(all, "wordtwo") {
			t.Errorf("%s: %s", test.url, all)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What has no name of its own is said in words, too, and its cause logged alone.
func TestABrokenConnectionIsSaid(t *testing.T) {
	err := (&database{name: "h:1/d"}).explain(io.ErrUnexpectedEOF)
	var fe *fleet.Error
	if !errors.As(err, &fe) || !strings.Contains(fe.Message, "h:1/d: the connection broke") || fe.Details[fleet.DetailRemedy] == "" ||
		!errors.Is(err, fleet.ErrStoreUnavailable) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%#v", err)
	}
}
