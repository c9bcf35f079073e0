package network

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// names are those of one registry's host objects.
type names struct {
	tag string // six hex digits
}

func (n names) nsName(slot int) string   { return fmt.Sprintf("fuse-%s-%d", n.tag, slot) }
func (n names) nsPath(slot int) string   { return filepath.Join(nsDir, n.nsName(slot)) }
func (n names) linkPrefix() string       { return hostPrefix + n.tag + "-" }
func (n names) linkName(slot int) string { return fmt.Sprintf("%s%d", n.linkPrefix(), slot) }
func (n names) tableName() string        { return "fuse-" + n.tag }

// slotOf reads the slot number at the end of a name that naming would give it.
func slotOf(name string, naming func(int) string) (int, bool) {
	slot, err := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
	return slot, err == nil && slot >= 0 && naming(slot) == name
}
