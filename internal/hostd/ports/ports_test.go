package ports

import (
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

// outside are ports that programs of the host have, and those reserved.
type outside struct {
	taken map[int]bool
	held  int
}

type closer struct{ o *outside }

func (c closer) Close() error { c.o.held--; return nil }

func (o *outside) reserve(_ bool, port uint16) (io.Closer, error) {
	if o.taken[int(port)] {
		return nil, errors.New("address already in use")
	}
	o.held++
	return closer{o}, nil
}

func tcp(guest, host int) driver.Port {
	return driver.Port{Guest: guest, Protocol: fleet.ProtocolTCP, Host: host}
}

func yes([]driver.Port) error { return nil }

func TestTable(t *testing.T) {
	o := &outside{taken: map[int]bool{20001: true}}
	table := New(Range{20000, 20004}, nil)
	table.ReserveWith(o.reserve)
	root := t.TempDir()
	a, b := driver.VM{UID: "a", Slot: 1, Dir: t.TempDir()}, driver.VM{UID: "b", Slot: 2, Dir: t.TempDir()}
	set := func(vm driver.VM, want ...driver.Port) []driver.Port {
		t.Helper()
		got, err := table.Set(vm, want, yes)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	refused := func(code fleet.Code, vm driver.VM, want ...driver.Port) {
		t.Helper()
		before := o.held
		_, err := table.Set(vm, want, func([]driver.Port) error { t.Error("it was applied"); return nil })
		if fleet.CodeOf(err) != code || o.held != before {
			t.Errorf("%v: %v; %d reserved, %d before", want, err, o.held, before)
		}
	}
	// What is taken is passed over, and the number that another asks for too.
	if got := set(a, tcp(80, 0), tcp(81, 20000)); !slices.Equal(got, []driver.Port{tcp(80, 20002), tcp(81, 20000)}) {
		t.Errorf("got %v", got)
	}
	refused(fleet.CodeConflict, b, tcp(80, 20000))        // another VM has it
	refused(fleet.CodeConflict, b, tcp(80, 20001))        // a program of the host
	refused(fleet.CodeInvalidArgument, b, tcp(80, 19999)) // out of range
	refused(fleet.CodeUnavailable, b, tcp(80, 0), tcp(81, 0), tcp(82, 0))
	// A port that stays keeps its number, unless another asks for it.
	if got := set(a, tcp(82, 0), tcp(80, 0)); !slices.Equal(got, []driver.Port{tcp(82, 20003), tcp(80, 20002)}) {
		t.Errorf("got %v", got)
	}
	if got := set(a, tcp(80, 0), tcp(82, 20002)); !slices.Equal(got, []driver.Port{tcp(80, 20004), tcp(82, 20002)}) {
		t.Errorf("got %v", got)
	}
	// What cannot be applied is taken back, on disk too.
	broken, applied := errors.New("no"), [][]driver.Port(nil)
	if _, err := table.Set(a, []driver.Port{tcp(9, 0)}, func(p []driver.Port) error {
		if applied = append(applied, p); len(applied) == 1 {
			return broken
		}
		return nil
	}); !errors.Is(err, broken) || len(applied) != 2 || !slices.Equal(applied[1], []driver.Port{tcp(80, 20004), tcp(82, 20002)}) {
		t.Errorf("got %v, applied %v", err, applied)
	}
	if kept, err := table.Load(a); err != nil || len(kept) != 2 || o.held != 2 {
		t.Errorf("kept %v, %v; %d reserved", kept, err, o.held)
	}
	// Another process finds them and hands out none of them.
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	table = New(Range{20002, 20004}, nil)
	if kept, err := table.Load(a); err != nil || len(kept) != 2 {
		t.Errorf("loaded %v, %v", kept, err)
	}
	table.ReserveWith(o.reserve)
	if got := set(b, tcp(80, 0)); got[0].Host != 20003 || o.held != 3 {
		t.Errorf("got %v, %d reserved", got, o.held)
	}
	if err := table.Release("a"); err != nil || o.held != 1 {
		t.Errorf("%v, %d reserved", err, o.held)
	}
	if all, err := New(Range{}, nil).LoadAll(root); err != nil || len(all) != 0 {
		t.Errorf("an empty host has %v, %v", all, err)
	}
	if all, err := New(Range{}, nil).LoadAll(b.Dir + "/.."); err != nil || len(all) != 2 {
		t.Errorf("the host has %v, %v", all, err)
	}
}

func TestParseRange(t *testing.T) {
	if r, err := ParseRange("20000-20010"); err != nil || r != (Range{20000, 20010}) || r.String() != "20000-20010" {
		t.Errorf("%v, %v", r, err)
	}
	for _, bad := range []string{"", "20000", "1-2", "1023-2000", "3000-2000", "20000-65536", "a-b"} {
		if r, err := ParseRange(bad); err == nil {
			t.Errorf("%q is %v", bad, r)
		}
	}
}
