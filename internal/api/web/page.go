package web

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// Page sizes of the public wire.
const (
	defaultPage = 50
	maxPage     = 200
)

// PageLimit reads ?limit=: what cannot be read or is not positive is the
// default, what is too much the maximum.
func PageLimit(q url.Values) int {
	n, err := strconv.Atoi(q.Get("limit"))
	if err != nil || n <= 0 {
		return defaultPage
	}
	return min(n, maxPage)
}

// OnlyQuery refuses query parameters that a route does not know. For routes that
// do more where a parameter is left out: one that is misspelt must not count as
// that.
func OnlyQuery(q url.Values, known ...string) error {
	for _, name := range slices.Sorted(maps.Keys(q)) {
		if !slices.Contains(known, name) {
			return fleet.Errorf(fleet.CodeInvalidArgument, "query parameter %.40q is not known here", name).
				With(fleet.DetailScope, "query").With(fleet.DetailLimit, strings.Join(known, ", "))
		}
		if len(q[name]) == 1 && q[name][0] == "" {
			return fleet.Errorf(fleet.CodeInvalidArgument, "query parameter %s is empty", name).
				With(fleet.DetailScope, name).With(fleet.DetailRemedy, "give it a value, or leave it out")
		}
		if len(q[name]) > 1 {
			return fleet.Errorf(fleet.CodeInvalidArgument, "query parameter %s is given %d times", name, len(q[name])).
				With(fleet.DetailScope, name).With(fleet.DetailRemedy, "ask once for each")
		}
	}
	return nil
}

// cursor is what an opaque cursor holds: the last id of the page before.
type cursor struct {
	ID string `json:"id"`
}

// EncodeCursor makes the cursor of the page after id.
func EncodeCursor(id string) string {
	raw, err := json.Marshal(cursor{id})
	if err != nil {
		return "" // a string always encodes
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// MaxCursor bounds the text of a cursor.
const MaxCursor = 1024

// DecodeCursor returns the id after which the page begins; "" begins at the
// first.
func DecodeCursor(text string) (string, error) {
	if text == "" {
		return "", nil
	}
	bad := func() (string, error) {
		return "", fleet.Errorf(fleet.CodeInvalidArgument, "%w", fleet.ErrInvalidCursor).
			With(fleet.DetailScope, "cursor").With(fleet.DetailRemedy, "use next_cursor of the page before, or none")
	}
	if len(text) > MaxCursor {
		return bad()
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return bad()
	}
	var c cursor
	if json.Unmarshal(raw, &c) != nil || c.ID == "" {
		return bad()
	}
	return c.ID, nil
}
