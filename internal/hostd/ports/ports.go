// Package ports hands the ports of a host out to its VMs: which number of a
// range leads to which port of which guest. What a VM has is in its own
// directory, so that it keeps its numbers over a restart of the host agent and
// loses them with its last file.
package ports

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/fusevm/fuse/internal/durable"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

// File is the record in a VM's directory.
const File = "ports.json"

// Range is the numbers that a host hands out, both ends included.
type Range struct{ First, Last int }

// DefaultRange lies below the ports from which Linux takes those of outgoing
// connections.
var DefaultRange = Range{20000, 29999}

// ParseRange reads FIRST-LAST. None of it is a port below 1024.
func ParseRange(text string) (Range, error) {
	first, last, ok := strings.Cut(text, "-")
	a, err := strconv.Atoi(first)
	b, err2 := strconv.Atoi(last)
	if !ok || err != nil || err2 != nil || a < 1024 || b > fleet.MaxPort || a > b {
		return Range{}, fmt.Errorf("%q is no range of ports; write it as 20000-29999, from 1024 on", text)
	}
	return Range{a, b}, nil
}

// String is the range as ParseRange reads it.
func (r Range) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// Reserve keeps other programs from a port of the host until it is closed.
type Reserve func(udp bool, port uint16) (io.Closer, error)

// Table is what one host has handed out. It is safe for concurrent use, but the
// calls for one VM must not overlap.
type Table struct {
	span    Range
	reserve Reserve
	log     *slog.Logger

	mu   sync.Mutex
	next int              // where the search for a free number goes on
	held map[key]*holding // guarded by mu
}

type key struct {
	udp  bool
	port int
}

func keyOf(p driver.Port) key { return key{p.Protocol == fleet.ProtocolUDP, p.Host} }

type holding struct {
	uid      string
	reserved io.Closer // nil where nothing is
}

// record is the file of a VM.
type record struct {
	UID   string        `json:"uid"`
	Slot  int           `json:"slot"`
	Ports []driver.Port `json:"ports"`
}

// Entry is what one VM has.
type Entry struct {
	Slot  int
	Ports []driver.Port
}

// New makes an empty table. The zero Range is the default one; log may be nil.
func New(span Range, log *slog.Logger) *Table {
	if span == (Range{}) {
		span = DefaultRange
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Table{span: span, next: span.First, held: map[key]*holding{}, log: log}
}

// LoadAll takes in what every VM below dir has.
func (t *Table) LoadAll(dir string) ([]Entry, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*", File))
	if err != nil {
		return nil, err
	}
	var all []Entry
	for _, f := range files {
		e, err := t.load(f)
		if err != nil {
			t.log.Error("published ports of a vm not read", "file", f, "error", err)
			continue
		}
		all = append(all, e)
	}
	return all, nil
}

// Load takes in what a VM has, nothing if it never had any.
func (t *Table) Load(vm driver.VM) ([]driver.Port, error) {
	e, err := t.load(filepath.Join(vm.Dir, File))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return e.Ports, err
}

func (t *Table) load(file string) (Entry, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Entry{}, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return Entry{}, fmt.Errorf("%s: %w", file, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range r.Ports {
		if h := t.held[keyOf(p)]; h == nil {
			t.held[keyOf(p)] = &holding{uid: r.UID, reserved: t.retake(p)}
		}
	}
	return Entry{r.Slot, r.Ports}, nil
}

// retake reserves a port that was handed out before. Where another program has
// taken it meanwhile, the rules still lead to the guest.
func (t *Table) retake(p driver.Port) io.Closer {
	if t.reserve == nil {
		return nil
	}
	c, err := t.reserve(p.Protocol == fleet.ProtocolUDP, uint16(p.Host))
	if err != nil {
		t.log.Warn("a published port is in use by another program too", "protocol", p.Protocol, "port", p.Host, "error", err)
		return nil
	}
	return c
}

// ReserveWith reserves from now on what is handed out, and what has been.
func (t *Table) ReserveWith(r Reserve) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reserve = r
	for k, h := range t.held {
		if h.reserved == nil {
			protocol := fleet.ProtocolTCP
			if k.udp {
				protocol = fleet.ProtocolUDP
			}
			h.reserved = t.retake(driver.Port{Protocol: protocol, Host: k.port})
		}
	}
}

// Set gives a VM exactly the ports it wants: those it has keep their numbers
// unless another one is asked for. apply makes it so; the record is durable
// before it is called, and on error all is as it was.
func (t *Table) Set(vm driver.VM, want []driver.Port, apply func([]driver.Port) error) ([]driver.Port, error) {
	before, err := t.Load(vm)
	if err != nil {
		return nil, err
	}
	got, taken, err := t.take(vm.UID, want, before)
	if err != nil {
		return nil, err
	}
	err = write(vm, got)
	if err == nil {
		if err = apply(got); err != nil {
			err = errors.Join(err, apply(before), write(vm, before))
		}
	}
	if err != nil {
		return nil, errors.Join(err, t.give(taken))
	}
	gone := map[key]bool{}
	for _, p := range before {
		gone[keyOf(p)] = true
	}
	for _, p := range got {
		delete(gone, keyOf(p))
	}
	if err := t.give(slices.Collect(maps.Keys(gone))); err != nil {
		t.log.Warn("a port that is no longer published stays reserved", "uid", vm.UID, "error", err)
	}
	return got, nil
}

func write(vm driver.VM, ports []driver.Port) error {
	data, err := json.Marshal(record{vm.UID, vm.Slot, ports})
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(vm.Dir, File), data)
}

// take finds a number for every port; what was newly taken is returned too.
func (t *Table) take(uid string, want, before []driver.Port) (got []driver.Port, taken []key, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	got = keepNumbers(want, before)
	// Those with a number first, so that none is chosen that another asks for.
	for _, chosen := range []bool{true, false} {
		for i := range got {
			p := &got[i]
			if numbered := p.Host != 0; numbered != chosen {
				continue
			}
			fresh, err := t.takeOne(uid, p)
			if err != nil {
				return nil, nil, errors.Join(err, t.giveLocked(taken))
			}
			if fresh {
				taken = append(taken, keyOf(*p))
			}
		}
	}
	return got, taken, nil
}

// keepNumbers gives ports that were there and ask for no number the one that
// they have, unless another one asks for it.
func keepNumbers(want, before []driver.Port) []driver.Port {
	asked := map[key]bool{}
	for _, p := range want {
		asked[keyOf(p)] = true
	}
	got := slices.Clone(want)
	for i, p := range got {
		for _, had := range before {
			if p.Host == 0 && had.Guest == p.Guest && had.Protocol == p.Protocol && !asked[keyOf(had)] {
				got[i].Host = had.Host
			}
		}
	}
	return got
}

// takeOne takes the number that is asked for, or the next that is free.
func (t *Table) takeOne(uid string, p *driver.Port) (fresh bool, err error) {
	if p.Host != 0 {
		switch h := t.held[keyOf(*p)]; {
		case h != nil && h.uid == uid:
			return false, nil
		case h != nil:
			return false, t.inUse(*p, "another environment")
		case p.Host < t.span.First || p.Host > t.span.Last:
			return false, fleet.Errorf(fleet.CodeInvalidArgument, "host port %d is not one that this host publishes", p.Host).
				With(fleet.DetailScope, "expose.host_port").With(fleet.DetailLimit, t.span.String()).
				With(fleet.DetailRemedy, "ask for one of these, or leave host_port out")
		}
		if !t.bind(uid, *p) {
			return false, t.inUse(*p, "a program of the host")
		}
		return true, nil
	}
	for range t.span.Last - t.span.First + 1 {
		p.Host = t.next
		if t.next++; t.next > t.span.Last {
			t.next = t.span.First
		}
		if t.held[keyOf(*p)] == nil && t.bind(uid, *p) {
			return true, nil
		}
	}
	return false, fleet.Errorf(fleet.CodeUnavailable, "this host has no free %s port left to publish", p.Protocol).
		With(fleet.DetailScope, "published ports").With(fleet.DetailLimit, t.span.String()).
		With(fleet.DetailRemedy, "publish fewer ports, or give the host agent a wider --port-range")
}

func (t *Table) inUse(p driver.Port, by string) error {
	return fleet.Errorf(fleet.CodeConflict, "%s port %d of the host is in use by %s", p.Protocol, p.Host, by).
		With(fleet.DetailScope, "expose.host_port").With(fleet.DetailReason, "port_taken").
		With(fleet.DetailRemedy, "ask for another, or leave host_port out")
}

// bind notes a number as taken, unless another program has it.
func (t *Table) bind(uid string, p driver.Port) bool {
	h := &holding{uid: uid}
	if t.reserve != nil {
		var err error
		if h.reserved, err = t.reserve(p.Protocol == fleet.ProtocolUDP, uint16(p.Host)); err != nil {
			return false
		}
	}
	t.held[keyOf(p)] = h
	return true
}

// Release gives back all that a life has.
func (t *Table) Release(uid string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var keys []key
	for k, h := range t.held {
		if h.uid == uid {
			keys = append(keys, k)
		}
	}
	return t.giveLocked(keys)
}

// Close lets go of every reservation; the records stay.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.giveLocked(slices.Collect(maps.Keys(t.held)))
}

func (t *Table) give(keys []key) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.giveLocked(keys)
}

func (t *Table) giveLocked(keys []key) error {
	var errs []error
	for _, k := range keys {
		if h := t.held[k]; h != nil && h.reserved != nil {
			errs = append(errs, h.reserved.Close())
		}
		delete(t.held, k)
	}
	return errors.Join(errs...)
}
