package api

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strconv"

	"github.com/fusevm/fuse/internal/fleet"
)

// Page sizes of the public wire.
const (
	defaultPage = 50
	maxPage     = 200
)

// pageLimit reads ?limit=: what cannot be read or is not positive is the
// default, what is too much the maximum.
func pageLimit(q url.Values) int {
	n, err := strconv.Atoi(q.Get("limit"))
	if err != nil || n <= 0 {
		return defaultPage
	}
	return min(n, maxPage)
}

// cursor is what an opaque cursor holds: the last id of the page before.
type cursor struct {
	ID string `json:"id"`
}

func encodeCursor(id string) string {
	raw, err := json.Marshal(cursor{id})
	if err != nil {
		return "" // a string always encodes
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// maxCursor bounds the text of a cursor.
const maxCursor = 1024

// decodeCursor returns the id after which the page begins; "" begins at the
// first.
func decodeCursor(text string) (string, error) {
	if text == "" {
		return "", nil
	}
	bad := func() (string, error) {
		return "", fleet.Errorf(fleet.CodeInvalidArgument, "%w", fleet.ErrInvalidCursor).
			With(fleet.DetailScope, "cursor").With(fleet.DetailRemedy, "use next_cursor of the page before, or none")
	}
	if len(text) > maxCursor {
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
