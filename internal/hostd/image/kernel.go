package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/image/cpio"
)

// modulesDir is where modules lie in the initramfs.
const modulesDir = "/fuse-init/ko"

// Kernel is a kernel that is present, with an initramfs that holds the
// current guest agent.
type Kernel struct {
	Version string    `json:"version"`
	Digest  string    `json:"digest"` // sha256:HEX of the file QEMU boots
	Package string    `json:"package,omitempty"`
	Created time.Time `json:"created"`

	Path   string `json:"-"` // vmlinux, or Image on arm64
	Initrd string `json:"-"` // base initramfs; a per-VM archive is appended to a copy
	// InitrdDigest tells initramfs files apart: modules and guest agent.
	InitrdDigest string `json:"-"`
}

// keepInitramfs is how long an initramfs with another guest agent is kept.
const keepInitramfs = 24 * time.Hour

var kernelPackage = regexp.MustCompile(`linux-image-([0-9][0-9a-z.+~-]*-cloud-(?:amd64|arm64))\b`)

// Kernel returns the kernel to boot, making it and its initramfs if they are
// not there. It is quick when they are.
func (s *Store) Kernel(ctx context.Context, progress func(string)) (Kernel, error) {
	if progress == nil {
		progress = func(string) {}
	}
	ks := kernels{s}
	agent, err := s.fused.digest(s.cfg.Fused, s.arch)
	if err != nil {
		return Kernel{}, err
	}
	if k, err := ks.presentKernel(agent); err == nil {
		return k, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Kernel{}, err
	}
	unlock, err := s.lock(ctx, progress)
	if err != nil {
		return Kernel{}, err
	}
	defer unlock()
	k, err := ks.findKernel()
	if errors.Is(err, fs.ErrNotExist) {
		k, err = ks.makeKernel(ctx, progress)
	}
	if err != nil {
		return Kernel{}, err
	}
	return k, ks.makeInitramfs(&k, agent)
}

func (s kernels) presentKernel(agent string) (Kernel, error) {
	k, err := s.findKernel()
	if err != nil {
		return k, err
	}
	k.setInitrd(agent)
	_, err = os.Stat(k.Initrd)
	return k, err
}

func (k *Kernel) setInitrd(agent string) {
	k.InitrdDigest = agent
	k.Initrd = filepath.Join(filepath.Dir(k.Path), "initramfs-"+agent[:16]+".cpio")
}

// findKernel picks the operator's kernel when one is configured, else the one
// made last. fs.ErrNotExist means that it has to be made.
func (s kernels) findKernel() (Kernel, error) {
	if s.cfg.Kernel != "" {
		version, err := s.customVersion()
		if err != nil {
			return Kernel{}, err
		}
		return s.readKernel(version)
	}
	entries, err := os.ReadDir(s.kernelsDir())
	if err != nil {
		return Kernel{}, err
	}
	var best Kernel
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || strings.HasPrefix(e.Name(), "custom-") {
			continue
		}
		if k, err := s.readKernel(e.Name()); err == nil && k.Created.After(best.Created) {
			best = k
		}
	}
	if best.Version == "" {
		return best, fmt.Errorf("kernel: %w", fs.ErrNotExist)
	}
	return best, nil
}

func (s kernels) readKernel(version string) (Kernel, error) {
	dir := filepath.Join(s.kernelsDir(), version)
	k, err := readMeta[Kernel](filepath.Join(dir, "meta.json"))
	k.Path = filepath.Join(dir, "vmlinux")
	return k, err
}

// customVersion names the operator's kernel by its content.
func (s kernels) customVersion() (string, error) {
	sum, err := fileDigest(s.cfg.Kernel)
	if err != nil {
		return "", fleet.Errorf(fleet.CodeInvalidArgument, "kernel: %w", err).
			With(fleet.DetailRemedy, "give --kernel the path of a bzImage, a vmlinux or an arm64 Image")
	}
	return "custom-" + sum[:16], nil
}

// makeKernel builds the kernel's directory. The caller holds the lock.
func (s kernels) makeKernel(ctx context.Context, progress func(string)) (Kernel, error) {
	tmp, err := os.MkdirTemp(s.kernelsDir(), tmpPrefix)
	if err != nil {
		return Kernel{}, fmt.Errorf("make kernel: %w", err)
	}
	defer os.RemoveAll(tmp)
	k := Kernel{Created: time.Now().UTC()}
	file, modules := s.cfg.Kernel, s.cfg.Modules
	if file == "" {
		if file, modules, err = s.debianKernel(ctx, tmp, &k, progress); err != nil {
			return Kernel{}, err
		}
	} else if k.Version, err = s.customVersion(); err != nil {
		return Kernel{}, err
	}
	progress("preparing kernel " + k.Version)
	out := filepath.Join(tmp, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		return Kernel{}, fmt.Errorf("make kernel: %w", err)
	}
	if err := s.fillKernel(out, file, modules, &k); err != nil {
		return Kernel{}, fleet.Errorf(fleet.CodeUnavailable, "kernel %s: %w", k.Version, err)
	}
	if err := failpoint.Hit("image.kernel"); err != nil {
		return Kernel{}, err
	}
	final := filepath.Join(s.kernelsDir(), k.Version)
	if err := os.RemoveAll(final); err != nil { // without a meta.json nobody uses it
		return Kernel{}, fmt.Errorf("make kernel: %w", err)
	}
	if err := rename(out, final); err != nil {
		return Kernel{}, fmt.Errorf("make kernel: %w", err)
	}
	k.Path = filepath.Join(final, "vmlinux")
	return k, nil
}

// debianKernel unpacks the newest cloud kernel that apt knows.
func (s kernels) debianKernel(ctx context.Context, tmp string, k *Kernel, progress func(string)) (file, modules string, err error) {
	meta := "linux-image-cloud-" + s.arch
	out, err := s.tools.run(ctx, "", "apt-cache", "depends", meta)
	if err != nil {
		return "", "", aptError(meta, err)
	}
	found := kernelPackage.FindStringSubmatch(out)
	if found == nil {
		return "", "", aptError(meta, errors.New("apt's lists do not say which kernel it stands for"))
	}
	path, err := s.fetchDeb(ctx, found[0], progress)
	if err != nil {
		return "", "", err
	}
	k.Version, k.Package = found[1], debName(path)
	progress("unpacking " + found[0])
	dir := filepath.Join(tmp, "deb")
	if err := s.tools.unpackDeb(ctx, path, dir); err != nil {
		return "", "", fmt.Errorf("unpack %s: %w", found[0], err)
	}
	modules = filepath.Join(dir, "lib/modules", k.Version)
	if _, err := os.Stat(modules); err != nil { // merged /usr
		modules = filepath.Join(dir, "usr/lib/modules", k.Version)
	}
	return filepath.Join(dir, "boot/vmlinuz-"+k.Version), modules, nil
}

func (s kernels) fillKernel(out, file, modules string, k *Kernel) error {
	packed, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	kernel, err := bootable(packed, s.arch)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(kernel)
	k.Digest = "sha256:" + hex.EncodeToString(sum[:])
	if err := writeFile(filepath.Join(out, "vmlinux"), 0o444, func(w io.Writer) error {
		_, err := w.Write(kernel)
		return err
	}); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(out, "modules.cpio"), 0o444, func(w io.Writer) error {
		return writeModules(w, modules)
	}); err != nil {
		return err
	}
	return writeMeta(filepath.Join(out, "meta.json"), k)
}

func writeModules(w io.Writer, dir string) error {
	tree, err := openModules(dir)
	if err != nil {
		return err
	}
	boot, err := tree.order(bootModules, nil)
	if err != nil {
		return err
	}
	late, err := tree.order(lateModules, boot)
	if err != nil {
		return err
	}
	a := cpio.NewWriter(w) // it keeps its first error for Close
	for _, group := range []struct {
		list    string
		modules []*module
	}{{guestwire.ModulesPath, boot}, {guestwire.LateModulesPath, late}} {
		var paths strings.Builder
		for _, m := range group.modules {
			path := modulesDir + "/" + m.name + ".ko"
			fmt.Fprintln(&paths, path)
			_ = a.File(path, 0o400, int64(len(m.data)), bytes.NewReader(m.data))
		}
		_ = a.File(group.list, 0o400, int64(paths.Len()), strings.NewReader(paths.String()))
	}
	return a.Close()
}

// makeInitramfs joins the kernel's modules and the guest agent. It stays
// uncompressed: the guest would spend longer unpacking than the copy costs.
func (s kernels) makeInitramfs(k *Kernel, agent string) error {
	k.setInitrd(agent)
	if _, err := os.Stat(k.Initrd); err == nil {
		return nil
	}
	err := writeFile(k.Initrd, 0o444, func(w io.Writer) error {
		modules, err := os.Open(filepath.Join(filepath.Dir(k.Path), "modules.cpio"))
		if err != nil {
			return err
		}
		defer modules.Close()
		if _, err := io.Copy(w, modules); err != nil {
			return err
		}
		fused, err := os.Open(s.cfg.Fused)
		if err != nil {
			return err
		}
		defer fused.Close()
		st, err := fused.Stat()
		if err != nil {
			return err
		}
		a := cpio.NewWriter(w)
		_ = a.File("/init", 0o755, st.Size(), fused)
		return a.Close()
	})
	if err != nil {
		return fmt.Errorf("make initramfs: %w", err)
	}
	old, _ := filepath.Glob(filepath.Join(filepath.Dir(k.Path), "initramfs-*.cpio"))
	for _, path := range old {
		if st, err := os.Stat(path); err == nil && path != k.Initrd && time.Since(st.ModTime()) > keepInitramfs {
			_ = os.Remove(path)
		}
	}
	return nil
}

// fusedCache remembers the digest of the guest agent while its file is the
// same one.
type fusedCache struct {
	mu  sync.Mutex
	of  os.FileInfo
	sum string
}

func (c *fusedCache) digest(path, arch string) (string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", fleet.Errorf(fleet.CodeUnavailable, "the guest agent is missing: %w", err).
			With(fleet.DetailRemedy, "run make build, which puts fused beside fuse")
	}
	c.mu.Lock()
	same := c.of != nil && os.SameFile(c.of, st) && c.of.ModTime().Equal(st.ModTime()) && c.of.Size() == st.Size()
	sum := c.sum
	c.mu.Unlock()
	if same {
		return sum, nil
	}
	if err := checkFused(path, arch); err != nil {
		return "", fleet.Errorf(fleet.CodeUnavailable, "the guest agent %s cannot run in a guest: %w", path, err).
			With(fleet.DetailRemedy, "build it with CGO_ENABLED=0 for "+arch)
	}
	if sum, err = fileDigest(path); err != nil {
		return "", fmt.Errorf("read the guest agent: %w", err)
	}
	c.mu.Lock()
	c.of, c.sum = st, sum
	c.mu.Unlock()
	return sum, nil
}

// checkFused refuses an agent that needs a dynamic linker or another CPU.
func checkFused(path, arch string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	want := map[string]elf.Machine{fleet.ArchAMD64: elf.EM_X86_64, fleet.ArchARM64: elf.EM_AARCH64}[arch]
	if f.Machine != want {
		return fmt.Errorf("it is built for %s", f.Machine)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("it is not statically linked")
		}
	}
	return nil
}
