package guestmem

import (
	"errors"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
)

func TestParse(t *testing.T) {
	const head = "MemTotal:       16384000 kB\nMemFree:          1 kB\n"
	for name, tt := range map[string]struct {
		text string
		want Memory
	}{
		"no huge pages":     {head, Memory{RamMB: 16000}},
		"some are used":     {head + "HugePages_Total:    1024\nHugePages_Free:      600\nHugePages_Rsvd:      100\nHugepagesize:       2048 kB\n", Memory{RamMB: 13952, HugePages: 1024, FreeHuge: 500}},
		"more are promised": {head + "HugePages_Total:    10\nHugePages_Free:      1\nHugePages_Rsvd:      2\nHugepagesize:       2048 kB\n", Memory{RamMB: 15980, HugePages: 10}},
		"of another size":   {head + "HugePages_Total:    4\nHugePages_Free:      4\nHugepagesize:       1048576 kB\n", Memory{RamMB: 16000}},
	} {
		got, err := memory(parse(strings.NewReader(tt.text)))
		if err != nil || got != tt.want {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, tt.want)
		}
	}
	if _, err := memory(parse(strings.NewReader("Huge: 1\n"))); err == nil {
		t.Error("a file without MemTotal is taken")
	}
	if m, err := Read(); err != nil || m.RamMB <= 0 {
		t.Errorf("this machine: %+v, %v", m, err)
	}
}

func TestAvailable(t *testing.T) {
	all, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Available(); err != nil || got <= 0 || got > int64(all.RamMB)<<20 {
		t.Errorf("%d bytes are available of %d MiB: %v", got, all.RamMB, err)
	}
}

func TestObject(t *testing.T) {
	if got := Object(511, false); got != "memory-backend-ram,id=ram,size=511M" || Size(511, false) != 511 {
		t.Errorf("got %s", got)
	}
	if got := Object(511, true); !strings.Contains(got, "size=512M") || !strings.Contains(got, "hugetlb=on") || !strings.Contains(got, "prealloc=on") || Size(511, true) != 512 {
		t.Errorf("got %s", got)
	}
}

func TestRefused(t *testing.T) {
	const words = "qemu-system-x86_64: unable to map backing store for guest RAM: Cannot allocate memory"
	for _, huge := range []bool{false, true} {
		err := Refused(words, 512, huge)
		var fe *fleet.Error
		if !errors.Is(err, fleet.ErrNoCapacity) || !errors.As(err, &fe) || fe.Details[fleet.DetailRemedy] == "" || strings.Contains(fe.Message, "huge") != huge {
			t.Errorf("huge %v: got %v", huge, err)
		}
	}
	if err := Refused("qemu: bad argument", 512, true); err != nil {
		t.Errorf("another reason: %v", err)
	}
}
