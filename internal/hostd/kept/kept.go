// Package kept keeps what a guest was given below /fuse, which is memory there,
// and gives it again after the guest has rebooted; and what is known of its
// end. What it keeps of the files holds secrets:
// it lies in the VM's own directory, readable by the host agent alone, and goes
// with the VM.
package kept

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/durable"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/console"
	"github.com/fusevm/fuse/internal/keylock"
)

// File is the name of what is kept, in a VM's directory.
const File = "kept.json"

// maxBoots bounds how many reboots are remembered.
const maxBoots = 16

// Agent is the guest agent as a Guest uses it.
type Agent interface {
	Info(ctx context.Context) (fleet.GuestInfo, error)
	WriteFiles(ctx context.Context, files []fleet.GuestFile) error
	Drain(ctx context.Context, command string) (fleet.ExecStatus, error)
}

// Boot is one reboot of a guest.
type Boot struct {
	At    time.Time `json:"at"`
	Cause string    `json:"cause"`
}

// Causes of a reboot.
const (
	CauseReboot = "reboot" // the guest asked for it
	CausePanic  = "panic"  // its kernel panicked
)

type record struct {
	BootID  string               `json:"boot_id"`         // that has the files
	Panic   bool                 `json:"panic,omitempty"` // that boot has ended in one, which Boots has
	Drained bool                 `json:"drained,omitempty"`
	Files   map[string]savedFile `json:"files,omitempty"`
	Boots   []Boot               `json:"boots,omitempty"`
}

type savedFile struct {
	Mode uint32 `json:"mode"`
	Data []byte `json:"data"`
}

// Guest is a guest agent whose files are kept.
type Guest struct {
	*guestwire.Client
	keeper
}

// New keeps what c is given in dir.
func New(c *guestwire.Client, dir string) *Guest {
	return &Guest{c, keeper{agent: c, dir: dir, lock: new(keylock.Lock)}}
}

// WriteFiles writes files and keeps those that a reboot would take.
func (g *Guest) WriteFiles(ctx context.Context, files []fleet.GuestFile) error {
	return g.writeFiles(ctx, files)
}

// Drain drains the guest, for good: its services stay stopped over a reboot.
func (g *Guest) Drain(ctx context.Context, command string) (fleet.ExecStatus, error) {
	return g.drain(ctx, command)
}

// Again gives the guest what it had before it rebooted, if it has, and says
// why it did; empty if it has not.
func (g *Guest) Again(ctx context.Context, consolePath string) (cause string, err error) {
	return g.again(ctx, consolePath)
}

// GiveAgain gives the guest everything that it was given before, whatever it
// has now.
func (g *Guest) GiveAgain(ctx context.Context) error { return g.giveAgain(ctx) }

// Panicked notes at once that the guest's kernel says it panicked.
func (g *Guest) Panicked(ctx context.Context, log *slog.Logger) {
	if err := g.panicked(ctx); err != nil {
		log.Warn("a guest's panic not noted", "dir", g.dir, "error", err)
	}
}

type keeper struct {
	agent Agent
	dir   string
	lock  *keylock.Lock
}

func (k keeper) writeFiles(ctx context.Context, files []fleet.GuestFile) error {
	unlock, err := k.lock.Take(ctx, File)
	if err != nil {
		return err
	}
	defer unlock()
	if err := k.agent.WriteFiles(ctx, files); err != nil {
		return err
	}
	own := map[string]savedFile{}
	for _, f := range files {
		if strings.HasPrefix(f.Path, fleet.ReservedGuestDir+"/") {
			own[f.Path] = savedFile{f.Mode, f.Data}
		}
	}
	if len(own) == 0 {
		return nil
	}
	return k.change(ctx, func(r *record) {
		if r.Files == nil {
			r.Files = map[string]savedFile{}
		}
		for path, f := range own {
			r.Files[path] = f
		}
	})
}

func (k keeper) drain(ctx context.Context, command string) (fleet.ExecStatus, error) {
	unlock, err := k.lock.Take(ctx, File)
	if err != nil {
		return fleet.ExecStatus{}, err
	}
	err = k.change(ctx, func(r *record) { r.Drained = true })
	unlock()
	if err != nil {
		return fleet.ExecStatus{}, err
	}
	return k.agent.Drain(ctx, command)
}

// change changes the record. The first change learns which boot it is of.
func (k keeper) change(ctx context.Context, f func(*record)) error {
	r, err := k.load()
	if err != nil {
		return err
	}
	if r.BootID == "" {
		info, err := k.agent.Info(ctx)
		if err != nil {
			return err
		}
		r.BootID = info.BootID
	}
	f(&r)
	return k.store(r)
}

func (k keeper) load() (record, error) {
	var r record
	b, err := os.ReadFile(filepath.Join(k.dir, File))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil && json.Unmarshal(b, &r) != nil {
		err = errors.New("it is no JSON") // the cause may quote a secret
	}
	if err != nil {
		return r, fmt.Errorf("read what the guest was given: %w", err)
	}
	return r, nil
}

func (k keeper) store(r record) error {
	b, err := json.Marshal(r)
	if err == nil {
		err = durable.WriteFile(filepath.Join(k.dir, File), b)
	}
	if err != nil {
		return fmt.Errorf("keep what the guest was given: %w", err)
	}
	return nil
}

func (k keeper) again(ctx context.Context, consolePath string) (string, error) {
	unlock, err := k.lock.Take(ctx, File)
	if err != nil {
		return "", err
	}
	defer unlock()
	r, err := k.load()
	if err != nil || r.BootID == "" {
		return "", err
	}
	info, err := k.agent.Info(ctx)
	if err != nil || info.BootID == r.BootID {
		return "", err
	}
	if err := k.give(ctx, r); err != nil {
		return "", err
	}
	cause := CauseReboot
	if r.Panic || console.Panicked(consolePath) {
		cause = CausePanic
	}
	if !r.Panic { // else it is told already
		r.tell(cause)
	}
	r.BootID, r.Panic = info.BootID, false
	return cause, k.store(r)
}

// panicked notes that the boot that has the files has ended. A guest can say so
// itself, once a boot.
func (k keeper) panicked(ctx context.Context) error {
	unlock, err := k.lock.Take(ctx, File)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := k.load()
	if err != nil || r.BootID == "" || r.Panic {
		return err
	}
	r.Panic = true
	r.tell(CausePanic)
	return k.store(r)
}

func (r *record) tell(cause string) {
	r.Boots = append(r.Boots, Boot{time.Now().UTC(), cause})
	r.Boots = r.Boots[max(0, len(r.Boots)-maxBoots):]
}

// give gives the guest what the record has.
func (k keeper) give(ctx context.Context, r record) error {
	if r.Drained { // before the manifest is there again, so that nothing starts
		if _, err := k.agent.Drain(ctx, ""); err != nil {
			return err
		}
	}
	var files []fleet.GuestFile
	for path, f := range r.Files {
		files = append(files, fleet.GuestFile{Path: path, Mode: f.Mode, Data: f.Data})
	}
	return k.agent.WriteFiles(ctx, files)
}

func (k keeper) giveAgain(ctx context.Context) error {
	unlock, err := k.lock.Take(ctx, File)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := k.load()
	if err != nil || r.BootID == "" {
		return err
	}
	info, err := k.agent.Info(ctx)
	if err != nil {
		return err
	}
	if err := k.give(ctx, r); err != nil {
		return err
	}
	r.BootID, r.Panic = info.BootID, false
	return k.store(r)
}
