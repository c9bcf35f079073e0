package thaw

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fusevm/fuse/internal/durable"
	"github.com/fusevm/fuse/internal/fleet"
)

// File is there, in a machine's directory, from before it counts until its
// processes go on: should the host agent die in between, the next one lets them.
const File = "thaw.json"

// owed is the content of File. The key opens nothing but this one guest.
type owed struct {
	Key        string `json:"key"`
	Generation string `json:"generation"`
}

// owe notes that the machine's processes are to go on.
func (r Request) owe(generation string) error {
	if r.VM.Dir == "" {
		return nil
	}
	doc, err := json.Marshal(owed{r.Key, generation})
	if err == nil {
		err = durable.WriteFile(filepath.Join(r.VM.Dir, File), doc)
	}
	if err != nil {
		return fmt.Errorf("note that the machine is to go on: %w", err)
	}
	return nil
}

// paid notes that they have gone on. If that fails, the next start finds it out.
func (r Request) paid() {
	if r.VM.Dir != "" {
		_ = os.Remove(filepath.Join(r.VM.Dir, File))
	}
}

const retryEvery = 200 * time.Millisecond

// open lets the processes of a renewed guest go on. A repeat is success, so it
// tries until the guest says yes or no, for Limit at most. ErrLate means that it
// said neither.
func open(ctx context.Context, g Guest, key, generation string) (told int, held time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	for {
		told, held, err = g.Thaw(ctx, key, generation)
		if err == nil || ctx.Err() == nil && !passing(err) {
			return told, held, err
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
			return 0, 0, errors.Join(ErrLate, err, context.Cause(ctx))
		}
	}
}

// passing says that a call may work out the next time.
func passing(err error) bool {
	code := fleet.CodeOf(err)
	return code == fleet.CodeUnavailable || code == fleet.CodeDeadlineExceeded
}

// Asked is a guest agent that says how it is.
type Asked interface {
	Thaw(ctx context.Context, thawKey, generation string) (told int, held time.Duration, err error)
	Info(ctx context.Context) (fleet.GuestInfo, error)
}

// Settle lets the processes of a machine go on that counts and whose agent died
// before it did so. It returns once that is settled, or at the end of ctx.
func Settle(ctx context.Context, dir string, g Asked) error {
	doc, err := os.ReadFile(filepath.Join(dir, File))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var o owed
	if err == nil {
		err = json.Unmarshal(doc, &o)
	}
	if err != nil {
		return fmt.Errorf("what lets the machine go on cannot be read: %w", err)
	}
	for {
		info, err := g.Info(ctx)
		if err == nil && info.Frozen {
			_, _, err = g.Thaw(ctx, o.Key, o.Generation)
		}
		switch {
		case err == nil:
			return os.Remove(filepath.Join(dir, File))
		case !passing(err) && ctx.Err() == nil: // it stands still for another reason
			return errors.Join(fmt.Errorf("the machine does not go on: %w", err), os.Remove(filepath.Join(dir, File)))
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
			return nil // nobody holds it any more; the next one to does this
		}
	}
}
