package kept

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1/guestwirev1connect"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostwire"
)

// Bounds of what is kept of the consoles of VMs that are gone.
const (
	consolesCount = 1024
	consolesBytes = 64 << 20
	consolesAge   = fleet.LifeRetention
)

// Consoles keeps the ends of the consoles of VMs that are gone, and answers for
// all that do not run.
type Consoles struct {
	dir string // of the host agent
	log *slog.Logger
	mu  sync.Mutex // one change at a time

	maxCount int
	maxBytes int64
}

// NewConsoles keeps them below dir, where the directories of the VMs are too.
func NewConsoles(dir string, log *slog.Logger) *Consoles {
	return &Consoles{dir: dir, log: log, maxCount: consolesCount, maxBytes: consolesBytes}
}

type past struct {
	FleetID string `json:"fleet_id"`
	VMID    string `json:"vm_id"`
	Output  []byte `json:"output"`
	Cut     bool   `json:"cut,omitempty"`
	Boots   []Boot `json:"boots,omitempty"`
}

func (c *Consoles) path(name string) string { return filepath.Join(c.dir, "consoles", name) }

// Keep keeps the end of a VM's console, before its files are removed. It is a
// help for people: where it fails the removal goes on.
func (c *Consoles) Keep(fleetID string, vm driver.VM) {
	output, cut, err := end(filepath.Join(vm.Dir, Console), defaultConsole)
	if err == nil && len(output) == 0 {
		return // a machine without one, or a removal that is tried again
	}
	if err == nil {
		r, _ := keeper{dir: vm.Dir}.load() // without it the reboots are missing, no more
		err = c.put(vm.UID, past{fleetID, vm.ID, output, cut, r.Boots})
	}
	if err != nil {
		c.log.Warn("console of a vm that ends not kept", "vm_id", vm.ID, "uid", vm.UID, "error", err)
	}
}

func (c *Consoles) put(uid string, p past) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := os.MkdirAll(c.path(""), 0o700); err != nil {
		return err
	}
	err = os.WriteFile(c.path(uid+".new"), data, 0o600)
	if err == nil {
		err = os.Rename(c.path(uid+".new"), c.path(uid))
	}
	if err != nil {
		return errors.Join(err, remove(c.path(uid+".new")))
	}
	return c.prune(time.Now())
}

// Prune forgets what is too old or too much.
func (c *Consoles) Prune(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.prune(now); err != nil {
		c.log.Warn("old consoles not removed", "error", err)
	}
}

func (c *Consoles) prune(now time.Time) error {
	entries, err := os.ReadDir(c.path(""))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var files []fs.FileInfo
	for _, e := range entries {
		if info, ierr := e.Info(); ierr == nil {
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { // newest first
		return cmp.Or(b.ModTime().Compare(a.ModTime()), cmp.Compare(a.Name(), b.Name()))
	})
	var bytes int64
	for i, f := range files {
		bytes += f.Size()
		if i >= c.maxCount || bytes > c.maxBytes || now.Sub(f.ModTime()) > consolesAge {
			err = errors.Join(err, remove(c.path(f.Name())))
		}
	}
	return err
}

func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Left answers a call for a VM that does not run: its console as far as that is
// kept, and why, which is the host's refusal of the call, for all else.
func (c *Consoles) Left(fleetID, vmID, uid string, why error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var found guestwirev1connect.ConsoleHandler
		if strings.HasPrefix(r.URL.Path, "/"+guestwirev1connect.ConsoleName+"/") {
			found = c.find(fleetID, vmID, uid, why)
		}
		if found == nil {
			hostwire.RefuseForward(w, r, why)
			return
		}
		_, serve := guestwirev1connect.NewConsoleHandler(found, connect.WithReadMaxBytes(guestwire.MaxMessage))
		serve.ServeHTTP(w, r)
	})
}

// find finds what is left of a VM, nil if nothing is. The host has looked whose a VM is that it
// still has; of one that is gone the record says so.
func (c *Consoles) find(fleetID, vmID, uid string, why error) guestwirev1connect.ConsoleHandler {
	there := errors.Is(why, fleet.ErrVMNotRunning)
	if !there && fleet.CodeOf(why) != fleet.CodeNotFound || !filepath.IsLocal(uid) {
		return nil
	}
	vm := filepath.Join(c.dir, "vms", uid)
	if _, err := os.Stat(filepath.Join(vm, Console)); there && err == nil {
		return consoleService{keeper{dir: vm}}
	}
	var p past
	data, err := os.ReadFile(c.path(uid))
	if err != nil || json.Unmarshal(data, &p) != nil || p.FleetID != fleetID || p.VMID != vmID {
		return nil
	}
	return pastService{p}
}

// pastService answers with a console that was kept.
type pastService struct{ past }

// ReadConsole returns the end of what the machine wrote.
func (s pastService) ReadConsole(_ context.Context, req *connect.Request[guestwirev1.ReadConsoleRequest]) (*connect.Response[guestwirev1.ReadConsoleResponse], error) {
	res := &guestwirev1.ReadConsoleResponse{Output: s.Output, Cut: s.Cut, Reboots: told(s.Boots)}
	if most := int(req.Msg.GetMaxBytes()); most > 0 && most < len(s.Output) {
		res.Output, res.Cut = s.Output[len(s.Output)-most:], true
	}
	return connect.NewResponse(res), nil
}

func told(boots []Boot) (out []*guestwirev1.Reboot) {
	for _, b := range boots {
		out = append(out, &guestwirev1.Reboot{AtUnixMs: b.At.UnixMilli(), Cause: b.Cause})
	}
	return out
}
