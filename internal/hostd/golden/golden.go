// Package golden keeps captures of machines that have just booted, one for each
// shape, so that others of the shape need not boot: they go on from the capture
// and are given all that is their own afterwards. A capture is of a machine that
// belongs to nobody and has nothing of anybody. Whatever fails here, machines
// boot.
package golden

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/diskspace"
	"github.com/fusevm/fuse/internal/durable"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/admit"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

// Limits in time.
const (
	makeLimit   = 5 * time.Minute  // of making one
	retryAfter  = 10 * time.Minute // of a shape for which it did not work out
	removeLimit = time.Minute
)

// Prefix of the ids of golden captures and of the machines they are made from.
const Prefix = "golden-"

// Lent is the directory of machines of nobody, in the host agent's.
const Lent = "lent"

// Driver is what golden captures need of one.
type Driver interface {
	driver.Driver
	driver.Snapshotter
	driver.Shaper
}

// Config of a Keeper. Dir, Driver, Room and Identity are needed.
type Config struct {
	Dir    string // of the host agent
	Driver Driver
	// Disk and RAM bound what all of them take, in bytes. Without disk there are
	// none.
	Disk, RAM int64
	// Room finds a slot and memory for a machine of nobody and adds its
	// directory; release gives both back once it is removed.
	Room   func(ctx context.Context, vm driver.VM) (placed driver.VM, release func(), err error)
	Memory *admit.Gate // nil admits everything
	// Identity makes one that nobody knows.
	Identity func() (driver.Identity, error)
	Log      *slog.Logger
}

// Keeper makes, finds and drops golden captures.
type Keeper struct {
	cfg Config

	making sync.WaitGroup
	turn   chan struct{} // one is made at a time
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	entries map[string]*entry    // by key
	begun   map[string]time.Time // makings, by key; those that failed stay for a while
	names   map[string]string    // of the captures that are being made, by key
	left    map[string]int64     // bytes of captures that are none any more and still on the disk, by name
	stuck   []string             // of those, the ones that could not be removed
	closed  bool
	yield   func()        // ends the making under way; nil: there is none
	over    chan struct{} // closed when that has ended
}

type entry struct {
	Entry
	Name      string // of its directory
	StorageGB int
	users     int
}

// record is what is kept of one beside the driver's files.
type record struct {
	Shape     driver.Shape `json:"shape"`
	Bytes     int64        `json:"bytes"`
	StorageGB int          `json:"storage_gb"`
}

const recordFile = "golden.json"

// Open finds the golden captures of an earlier start; what was not finished is
// removed.
func Open(cfg Config) (*Keeper, error) {
	k := &Keeper{
		cfg: cfg, turn: make(chan struct{}, 1), entries: map[string]*entry{}, begun: map[string]time.Time{}, names: map[string]string{}, left: map[string]int64{},
	}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	// A machine of nobody that an earlier start left is the driver's to sweep.
	if err := errors.Join(os.RemoveAll(filepath.Join(cfg.Dir, Lent)), os.MkdirAll(k.dir(), 0o700)); err != nil {
		return nil, fmt.Errorf("make the directory of golden snapshots: %w", err)
	}
	dirs, err := os.ReadDir(k.dir())
	if err != nil {
		return nil, fmt.Errorf("read the directory of golden snapshots: %w", err)
	}
	for _, d := range dirs {
		e, err := k.find(d.Name())
		if err != nil {
			k.drop(d.Name())
			continue
		}
		// Of two the later one was about to take the place of the other.
		if before := k.entries[e.Key]; before != nil {
			if before.StorageGB < e.StorageGB {
				e, before = before, e
			}
			k.drop(before.Name)
		}
		k.entries[e.Key] = e
	}
	return k, nil
}

func (k *Keeper) dir() string { return filepath.Join(k.cfg.Dir, "golden") }

// nameOf is what a capture of a shape that is made now is called: one that takes
// the place of another is made beside it.
func nameOf(key string) string { return key + "-" + strconv.FormatInt(time.Now().UnixNano(), 36) }

func (k *Keeper) artifact(name string) driver.Artifact {
	return driver.Artifact{ID: Prefix + name, Dir: filepath.Join(k.dir(), name)}
}

func (k *Keeper) find(name string) (*entry, error) {
	path := filepath.Join(k.dir(), name, recordFile)
	doc, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(doc, &r); err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	key := r.Shape.Key()
	if !strings.HasPrefix(name, key+"-") {
		return nil, errors.New("it is another shape's")
	}
	return &entry{Entry: Entry{Key: key, Shape: r.Shape, Bytes: r.Bytes, Used: info.ModTime()}, Name: name, StorageGB: r.StorageGB}, nil
}

// drop removes what there is of a capture. What cannot be removed counts, and is
// tried again with the next one.
func (k *Keeper) drop(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), removeLimit)
	defer cancel()
	a := k.artifact(name)
	err := os.Remove(filepath.Join(a.Dir, recordFile)) // from here on it is none
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err = errors.Join(err, k.cfg.Driver.Discard(ctx, a)); err == nil {
		err = os.RemoveAll(a.Dir)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.left, name)
	if err != nil {
		k.left[name], k.stuck = diskspace.Used(a.Dir), append(k.stuck, name)
		k.cfg.Log.Error("golden snapshot not removed", "name", name, "error", err)
	}
}

// Close ends the making of one and waits for it. No memory is held any more:
// the next start loads what it needs.
func (k *Keeper) Close() {
	if k == nil {
		return
	}
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.cancel()
	k.making.Wait()
	k.cfg.RAM = 0
	k.unload()
}

// Artifacts are all that there are, for the sweep.
func (k *Keeper) Artifacts() []driver.Artifact {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []driver.Artifact
	names := map[string]bool{}
	for _, e := range k.entries {
		names[e.Name] = true
	}
	for _, name := range k.names {
		names[name] = true
	}
	for name := range k.left {
		names[name] = true
	}
	for name := range names {
		out = append(out, k.artifact(name))
	}
	return out
}

// Bytes is what they take of the host's disk.
func (k *Keeper) Bytes() int64 {
	if k == nil {
		return 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var total int64
	for _, e := range k.entries {
		total += e.Bytes
	}
	for _, n := range k.left {
		total += n
	}
	return total
}

// Found is a golden capture that a machine can go on from.
type Found struct {
	Key      string
	Artifact driver.Artifact
	Bytes    int64 // on the disk: its memory takes at most as much
	// Grow says that the machine's disk is larger than the capture's.
	Grow bool
	// Release ends the use. With an error of the capture's own it is dropped.
	Release func(broken error)
}

// Find finds the capture for a machine, if there is one.
func (k *Keeper) Find(ctx context.Context, vm driver.VM) (Found, bool) {
	if k == nil || k.cfg.Disk <= 0 {
		return Found{}, false
	}
	shape, _, ok, err := k.cfg.Driver.Shape(ctx, vm)
	if err != nil || !ok {
		return Found{}, false
	}
	key := shape.Key()
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.entries[key]
	if e == nil || vm.StorageGB < e.StorageGB {
		return Found{}, false
	}
	e.users++
	e.Busy, e.Used = true, time.Now()
	a := k.artifact(e.Name)
	_ = os.Chtimes(filepath.Join(a.Dir, recordFile), e.Used, e.Used) // for the order of eviction after a restart
	return Found{Key: key, Artifact: a, Bytes: e.Bytes, Grow: vm.StorageGB > e.StorageGB, Release: func(broken error) { k.release(key, e, broken) }}, true
}

// Want has a capture made for the next machine of a shape that has none. It is
// called once a machine runs, so that the first boot has the host to itself.
func (k *Keeper) Want(ctx context.Context, vm driver.VM) {
	if k == nil || k.cfg.Disk <= 0 {
		return
	}
	shape, least, ok, err := k.cfg.Driver.Shape(ctx, vm)
	if err != nil || !ok {
		return
	}
	key := shape.Key()
	k.mu.Lock()
	defer k.mu.Unlock()
	// To grow a disk costs a machine as much as a command, so the capture has that
	// of the first one that wants it, until one comes that wants less.
	size := max(least, vm.StorageGB)
	if e := k.entries[key]; e != nil {
		if size >= e.StorageGB || e.Busy {
			return
		}
	}
	k.beginLocked(key, shape, vm, size)
}

func (k *Keeper) release(key string, e *entry, broken error) {
	k.mu.Lock()
	e.users--
	e.Busy = e.users > 0
	if broken != nil && k.entries[key] == e {
		delete(k.entries, key)
		k.left[e.Name] = e.Bytes
		k.begun[key] = time.Now() // not at once again
	}
	gone := k.entries[key] != e && !e.Busy
	k.mu.Unlock()
	if gone {
		k.cfg.Log.Warn("golden snapshot dropped", "key", key, "error", broken)
		k.drop(e.Name)
	}
	k.unload()
}

// beginLocked begins the making of a capture, unless one is under way or failed
// a short while ago.
func (k *Keeper) beginLocked(key string, shape driver.Shape, vm driver.VM, storageGB int) {
	maps.DeleteFunc(k.begun, func(_ string, at time.Time) bool { return !at.IsZero() && time.Since(at) >= retryAfter })
	if _, there := k.begun[key]; k.closed || there {
		return
	}
	name := nameOf(key)
	k.begun[key], k.names[key] = time.Time{}, name
	k.making.Go(func() {
		err := k.make(name, shape, vm, storageGB)
		k.mu.Lock()
		delete(k.names, key)
		if err != nil && !errors.Is(err, context.Canceled) {
			k.begun[key] = time.Now()
		} else if k.begun[key].IsZero() { // else it has proved broken already
			delete(k.begun, key)
		}
		k.mu.Unlock()
		if err != nil && k.ctx.Err() == nil {
			k.cfg.Log.Warn("golden snapshot not made", "key", key, "image", vm.Image, "error", err)
		}
		k.evict(shape)
	})
}

// make boots a machine of nobody, captures it and removes it.
func (k *Keeper) make(name string, shape driver.Shape, like driver.VM, storageGB int) (err error) {
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-k.ctx.Done():
		return k.ctx.Err()
	}
	ctx, cancel := context.WithTimeoutCause(k.ctx, makeLimit, errors.New("it took too long"))
	defer cancel()
	over := make(chan struct{})
	k.mu.Lock()
	k.yield, k.over = cancel, over
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		k.yield = nil
		k.mu.Unlock()
		close(over)
	}()
	id, err := k.cfg.Identity()
	if err != nil {
		return err
	}
	vm, release, err := k.cfg.Room(ctx, driver.VM{
		ID: Prefix + shape.Key(), UID: Prefix + shape.Key(), CPUs: like.CPUs, RamMB: like.RamMB, StorageGB: storageGB, Image: like.Image, Digest: like.Digest,
	})
	if err != nil {
		return err
	}
	defer release()
	defer func() {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeLimit)
		defer cancel()
		err = errors.Join(err, k.cfg.Driver.Remove(undo, vm), os.RemoveAll(vm.Dir))
	}()
	begun, key := time.Now(), shape.Key()
	inst, err := k.cfg.Driver.Start(ctx, vm, id, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inst.Close()) }()
	if err := rehearse(ctx, inst); err != nil {
		return err
	}
	leave, err := k.cfg.Memory.Capture(ctx, vm)
	if err != nil {
		return err
	}
	defer leave()
	a := k.artifact(name)
	if err := os.Mkdir(a.Dir, 0o700); err != nil {
		return err
	}
	info, err := k.cfg.Driver.Snapshot(ctx, vm, driver.SnapshotRequest{To: a, Live: true})
	if err == nil && info.Kind != fleet.SnapshotKindLive {
		err = fmt.Errorf("the capture is of kind %s", info.Kind)
	}
	if err == nil {
		err = k.keep(name, record{Shape: shape, Bytes: info.SizeBytes, StorageGB: storageGB})
	}
	if err != nil {
		k.drop(name)
		return err
	}
	k.cfg.Log.Info("golden snapshot made", "key", key, "image", like.Image, "bytes", info.SizeBytes, "ms", time.Since(begun).Milliseconds())
	return nil
}

// rehearseLimit bounds the first command: what an image calls its shell may do
// anything.
const rehearseLimit = 30 * time.Second

// rehearsal is a first command: it makes a file and removes it wherever a machine
// is given files.
const rehearsal = `for d in /etc /etc/fuse /etc/profile.d /fuse; do f=$d/.fuse-rehearsal; [ ! -d $d ] || { : >$f && rm $f; }; done 2>/dev/null; :`

// rehearse runs a first command, so that the capture has in its memory what first
// commands and files have to be read from the disk. An image without a shell has
// no say.
func rehearse(ctx context.Context, inst driver.Instance) error {
	_, err := inst.Guest().Exec(ctx, fleet.ExecSpec{Argv: []string{"sh", "-c", rehearsal}, Timeout: rehearseLimit}, fleet.Stdio{})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil // the capture shows whether the guest is well
}

// keep has a capture that is whole take the place of the shape's earlier one,
// which goes once nobody uses it.
func (k *Keeper) keep(name string, r record) error {
	doc, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(k.artifact(name).Dir, recordFile), doc); err != nil {
		return err
	}
	key := r.Shape.Key()
	k.mu.Lock()
	before := k.entries[key]
	k.entries[key] = &entry{Entry: Entry{Key: key, Shape: r.Shape, Bytes: r.Bytes, Used: time.Now()}, Name: name, StorageGB: r.StorageGB}
	idle := before != nil && !before.Busy
	if before != nil {
		k.left[before.Name] = before.Bytes
	}
	k.mu.Unlock()
	if idle {
		k.drop(before.Name)
	}
	return nil
}

// evict drops what is over the bounds. now is the shape that was made last.
func (k *Keeper) evict(now driver.Shape) {
	k.mu.Lock()
	stuck := k.stuck
	k.stuck = nil
	gone := map[string]string{}
	for _, key := range Evict(k.listLocked(), k.cfg.Disk, now) {
		gone[key] = k.entries[key].Name
		k.left[gone[key]] = k.entries[key].Bytes
		delete(k.entries, key)
		k.begun[key] = time.Now() // what does not fit is not made over and over
	}
	k.mu.Unlock()
	for _, name := range stuck {
		k.drop(name)
	}
	for key, name := range gone {
		k.cfg.Log.Info("golden snapshot dropped", "key", key)
		k.drop(name)
	}
	k.unload()
}

func (k *Keeper) listLocked() []Entry {
	var out []Entry
	for _, e := range k.entries {
		out = append(out, e.Entry)
	}
	return out
}

// unload gives back the memory of those that were used longest ago, so that
// the rest stays within its bound.
func (k *Keeper) unload() {
	holder, ok := k.cfg.Driver.(driver.MemoryHolder)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeLimit)
	defer cancel()
	all, err := holder.Held(ctx)
	if err != nil {
		k.cfg.Log.Warn("memory of golden snapshots not looked at", "error", err)
		return
	}
	k.mu.Lock()
	held := map[string]int64{}
	names := map[string]string{}
	for key, e := range k.entries {
		held[key], names[key] = all[Prefix+e.Name], e.Name
	}
	gone := Unload(k.listLocked(), held, k.cfg.RAM)
	k.mu.Unlock()
	for _, key := range gone {
		if err := holder.Unload(ctx, k.artifact(names[key])); err != nil {
			k.cfg.Log.Warn("memory of a golden snapshot not given back", "key", key, "error", err)
		}
	}
}

// Yield ends the making that is under way, for somebody who needs its room, and
// waits for that; false if there is none. A later create has it made again.
func (k *Keeper) Yield(ctx context.Context) bool {
	if k == nil {
		return false
	}
	k.mu.Lock()
	yield, over := k.yield, k.over
	k.mu.Unlock()
	if yield == nil {
		return false
	}
	yield()
	select {
	case <-over:
		return true
	case <-ctx.Done():
		return false
	}
}
