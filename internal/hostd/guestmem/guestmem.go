// Package guestmem is about the memory of guests: which of the machine's there
// is for them, in ordinary and in huge pages, and how QEMU takes it.
package guestmem

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// Memory of a machine in MiB, and its huge pages, which are beside it: what the
// kernel has set aside for them is nobody else's.
type Memory struct {
	RamMB               int
	HugePages, FreeHuge int
}

// Read reads the machine's memory. Huge pages of another size than 2 MiB count
// as none.
func Read() (Memory, error) {
	v, err := meminfo()
	if err != nil {
		return Memory{}, err
	}
	return memory(v)
}

// Available is what the kernel says can be had of the machine's memory without
// any being written to a disk, in bytes.
func Available() (int64, error) {
	v, err := meminfo()
	if err != nil {
		return 0, err
	}
	kb, ok := v["MemAvailable"]
	if !ok {
		return 0, fmt.Errorf("meminfo does not tell MemAvailable")
	}
	return int64(kb) << 10, nil
}

func meminfo() (map[string]int, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parse(f), nil
}

func memory(values map[string]int) (Memory, error) {
	totalKB, ok := values["MemTotal"]
	if !ok {
		return Memory{}, fmt.Errorf("meminfo does not tell MemTotal")
	}
	var m Memory
	if values["Hugepagesize"] == fleet.HugePageMB<<10 {
		m.HugePages, m.FreeHuge = values["HugePages_Total"], max(values["HugePages_Free"]-values["HugePages_Rsvd"], 0)
	}
	m.RamMB = totalKB>>10 - m.HugePages*fleet.HugePageMB
	return m, nil
}

func parse(r io.Reader) map[string]int {
	values := map[string]int{}
	for s := bufio.NewScanner(r); s.Scan(); {
		name, rest, ok := strings.Cut(s.Text(), ":")
		if fields := strings.Fields(rest); ok && len(fields) > 0 {
			if n, err := strconv.Atoi(fields[0]); err == nil {
				values[name] = n
			}
		}
	}
	return values
}

// Object is QEMU's memory object of a guest. Huge pages are taken at the start:
// a guest that found none later would be killed by the kernel.
func Object(ramMB int, huge bool) string {
	if huge {
		return fmt.Sprintf("memory-backend-memfd,id=ram,size=%dM,hugetlb=on,hugetlbsize=%dM,share=off,prealloc=on", roundUp(ramMB), fleet.HugePageMB)
	}
	return fmt.Sprintf("memory-backend-ram,id=ram,size=%dM", ramMB)
}

// Size is the guest's memory in MiB as QEMU is told: whole pages.
func Size(ramMB int, huge bool) int {
	if huge {
		return roundUp(ramMB)
	}
	return ramMB
}

func roundUp(mb int) int { return (mb + fleet.HugePageMB - 1) / fleet.HugePageMB * fleet.HugePageMB }

// Refused is the error of a guest that found too little memory, by QEMU's last
// words; nil if it ended for another reason.
func Refused(text string, ramMB int, huge bool) error {
	if !strings.Contains(text, "Cannot allocate memory") && !strings.Contains(text, "os_mem_prealloc") {
		return nil
	}
	m, _ := Read() // without it the numbers are missing, which is no reason to hide the rest
	if huge {
		return fleet.Errorf(fleet.CodeUnavailable, "%w: this host has too few free huge pages", fleet.ErrNoCapacity).
			With(fleet.DetailScope, "huge_pages").
			With(fleet.DetailLimit, strconv.Itoa(m.HugePages)).
			With(fleet.DetailUsage, fmt.Sprintf("%d free, %d asked for", m.FreeHuge, roundUp(ramMB)/fleet.HugePageMB)).
			With(fleet.DetailRemedy, "something else took them: reserve more (sysctl vm.nr_hugepages), or create without huge pages")
	}
	return fleet.Errorf(fleet.CodeUnavailable, "%w: this host has too little memory left", fleet.ErrNoCapacity).
		With(fleet.DetailScope, "ram_mb").
		With(fleet.DetailLimit, strconv.Itoa(m.RamMB)).
		With(fleet.DetailUsage, fmt.Sprintf("%d asked for", ramMB)).
		With(fleet.DetailRemedy, "see what else runs on the host, or lower its --host-ram-mb")
}
