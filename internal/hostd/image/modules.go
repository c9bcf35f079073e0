package image

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// bootModules are what fused needs before it can mount the root and answer;
// lateModules are loaded once it answers. Both with their dependencies. A
// kernel that has one built in simply does not ship the file.
var (
	bootModules = []string{"virtio_pci", "virtio_blk", "virtio_net"}
	lateModules = []string{"virtio_rng", "qemu_fw_cfg", "overlay", "vmw_vsock_virtio_transport", "virtio_console", "pvpanic_mmio"}
)

// module is one kernel module, decompressed.
type module struct {
	name string // with underscores, as the kernel spells it
	data []byte
}

// moduleTree finds and reads modules below lib/modules/VERSION.
type moduleTree struct {
	files map[string]string
	read  map[string]*module
	deps  map[string][]string
}

// openModules lists the modules below dir. A directory that does not exist has
// none, which suits a kernel that has everything built in.
func openModules(dir string) (*moduleTree, error) {
	t := &moduleTree{files: map[string]string{}, read: map[string]*module{}, deps: map[string][]string{}}
	if dir == "" {
		return t, nil
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _, ok := strings.Cut(d.Name(), ".ko")
		if ok && d.Type().IsRegular() {
			t.files[strings.ReplaceAll(name, "-", "_")] = path
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list kernel modules: %w", err)
	}
	return t, nil
}

// order returns the named modules and all they depend on, dependencies first,
// without those in skip. Names the tree does not have are left out.
func (t *moduleTree) order(names []string, skip []*module) ([]*module, error) {
	seen := map[string]bool{}
	for _, m := range skip {
		seen[m.name] = true
	}
	var out []*module
	var visit func(name string, optional bool) error
	visit = func(name string, optional bool) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		m, err := t.load(name)
		if err != nil {
			if optional && errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		for _, dep := range t.deps[name] {
			if err := visit(dep, false); err != nil {
				return fmt.Errorf("%s needs %s: %w", name, dep, err)
			}
		}
		out = append(out, m)
		return nil
	}
	for _, name := range names {
		if err := visit(name, true); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (t *moduleTree) load(name string) (*module, error) {
	if m := t.read[name]; m != nil {
		return m, nil
	}
	path, ok := t.files[name]
	if !ok {
		return nil, fmt.Errorf("kernel module %s: %w", name, fs.ErrNotExist)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if !isELF(data) {
		if data, err = unpack(data); err != nil {
			return nil, fmt.Errorf("kernel module %s: %w", name, err)
		}
	}
	deps, err := moduleDeps(data)
	if err != nil {
		return nil, fmt.Errorf("kernel module %s: %w", name, err)
	}
	m := &module{name: name, data: data}
	t.read[name], t.deps[name] = m, deps
	return m, nil
}

// moduleDeps reads "depends=" from a module's own .modinfo section, so that no
// depmod is needed.
func moduleDeps(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, errors.New("no .modinfo section")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := strings.CutPrefix(string(field), "depends="); ok && list != "" {
			return strings.Split(strings.ReplaceAll(list, "-", "_"), ","), nil
		}
	}
	return nil, nil
}
