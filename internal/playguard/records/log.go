package records

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/state"
)

// SealKindLog is what an attempt of a trick wrote: programs write secrets.
const SealKindLog = "trick_log"

// MaxLog bounds what is kept of an attempt, in bytes before it is packed, and
// MaxLogs how many attempts' it is.
const (
	MaxLog  = 512 << 10
	MaxLogs = 3
)

// Log is what an attempt of a trick wrote.
type Log struct {
	Attempt int       `json:"attempt"`
	At      time.Time `json:"at"`
	Cut     bool      `json:"cut,omitempty"` // more was written before it
	Text    []byte    `json:"text"`
}

func logKey(p model.PlaygroundID, attempt int) string {
	return fmt.Sprintf("%s/log/%03d", p, attempt)
}

// PutLog keeps what an attempt wrote, and forgets that of long ago.
func PutLog(tx *state.Tx, s Sealer, p model.PlaygroundID, l Log) error {
	raw, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encode a log of %s: %w", p, err)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err = z.Write(raw)
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		return fmt.Errorf("pack a log of %s: %w", p, err)
	}
	key := logKey(p, l.Attempt)
	sealed, err := s.Seal(SealKindLog, key, packed.Bytes())
	if err != nil {
		return fmt.Errorf("seal a log of %s: %w", p, err)
	}
	if err := Entries.Put(tx, key, &Entry{LogSealed: sealed}); err != nil {
		return err
	}
	var all []string
	for key := range Entries.Prefix(tx, string(p)+"/log/") {
		all = append(all, key)
	}
	return drop(tx, all[:max(0, len(all)-MaxLogs)])
}

// OpenLog reads what an attempt wrote.
func OpenLog(tx state.Reader, s Sealer, p model.PlaygroundID, attempt int) (l Log, err error) {
	key := logKey(p, attempt)
	e, ok := Entries.Get(tx, key)
	if !ok || e.LogSealed == nil {
		return l, fleet.Errorf(fleet.CodeNotFound, "nothing is kept of what attempt %d wrote", attempt).With(fleet.DetailScope, "attempt")
	}
	packed, err := s.Open(SealKindLog, key, e.LogSealed)
	if err != nil {
		return l, fmt.Errorf("open the log of attempt %d: %w", attempt, err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return l, fmt.Errorf("unpack the log of attempt %d: %w", attempt, err)
	}
	raw, err := io.ReadAll(io.LimitReader(z, 4*MaxLog))
	if err = errors.Join(err, z.Close()); err != nil {
		return l, fmt.Errorf("unpack the log of attempt %d: %w", attempt, err)
	}
	if err := json.Unmarshal(raw, &l); err != nil {
		return l, fmt.Errorf("read the log of attempt %d: %w", attempt, err)
	}
	return l, nil
}
