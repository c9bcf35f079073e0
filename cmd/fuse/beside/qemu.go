// Package beside starts what Fuse's own machines are compared with: a bare QEMU
// and a container, of the same kernel and root.
package beside

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/bench/snapshots"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/console"
	"github.com/fusevm/fuse/internal/hostd/disk"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/image/cpio"
	"github.com/fusevm/fuse/internal/hostd/vmm"
	"github.com/fusevm/fuse/internal/hostd/vmm/accel"
)

const (
	// up is what a bare machine says once a program of its root has run.
	up        = "fuse-bench: up"
	bootLimit = 2 * time.Minute
	diskBytes = 1 << 30
)

// bareInit loads the same modules as the guest agent does, mounts the root and
// runs a first program of it.
const bareInit = `#!/busybox sh
/busybox mkdir -p /dev /proc /root
/busybox mount -t devtmpfs dev /dev
while read m; do /busybox insmod $m; done < ` + guestwire.ModulesPath + `
/busybox mount -t ext4 /dev/vda /root
/busybox chroot /root /bin/true && echo ` + up + ` > /dev/console
/busybox sleep 1000
`

// bare is a QEMU with nothing of Fuse around it.
type bare struct {
	dir     string // for its files
	machine vmm.Machine
	program string
	kernel  string
	root    string
}

// BareQEMU boots the kernel and image that a store has, up to the end of a first
// program. dir is for its files.
func BareQEMU(ctx context.Context, store *image.Store, name, dir string) snapshots.Beside {
	out := snapshots.Beside{Name: "bare QEMU, to its first program"}
	b, err := prepare(ctx, store, name, dir)
	if err != nil {
		out.Why = err.Error()
		return out
	}
	out.Once = b.boot
	return out
}

func prepare(ctx context.Context, store *image.Store, name, dir string) (*bare, error) {
	m, err := vmm.Host()
	if err != nil {
		return nil, err
	}
	b := &bare{dir: dir, machine: m}
	if b.program, err = accel.New(accel.Config{}, m, "").Program(); err != nil {
		return nil, err
	}
	img, err := store.Get(name)
	if err != nil {
		return nil, err
	}
	k, err := store.Kernel(ctx, nil)
	if err != nil {
		return nil, err
	}
	b.kernel, b.root = k.Path, img.Path
	return b, b.initrd(filepath.Join(filepath.Dir(k.Path), "modules.cpio"))
}

func (b *bare) initrdPath() string { return filepath.Join(b.dir, "bare.cpio") }

// initrd makes an archive of the kernel's modules, busybox and the script.
func (b *bare) initrd(modules string) (err error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return errors.New("busybox is missing: apt-get install busybox-static")
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	archive, err := os.ReadFile(modules)
	if err != nil {
		return err
	}
	f, err := os.Create(b.initrdPath())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(archive); err != nil {
		return err
	}
	a := cpio.NewWriter(f)
	return errors.Join(
		a.File("busybox", 0o755, int64(len(busybox)), strings.NewReader(string(busybox))),
		a.File("init", 0o755, int64(len(bareInit)), strings.NewReader(bareInit)),
		a.Close(),
	)
}

// boot boots once, with a new overlay on the image.
func (b *bare) boot(ctx context.Context, s snapshots.Shape) (took time.Duration, err error) {
	overlay := filepath.Join(b.dir, "bare.qcow2")
	d, err := disk.CreateOverlay(overlay, b.root, diskBytes)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, d.Close(), os.Remove(overlay)) }()
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	begun := time.Now()
	cmd := exec.CommandContext(ctx, b.program, b.args(s, overlay)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // it was killed
	}()
	var text strings.Builder
	for r := bufio.NewReader(out); ; {
		c, err := r.ReadByte()
		if err != nil {
			return 0, fmt.Errorf("the machine ended: %s", console.Printable(text.String()))
		}
		text.WriteByte(c)
		if c == up[len(up)-1] && strings.HasSuffix(text.String(), up) {
			return time.Since(begun), nil
		}
	}
}

func (b *bare) args(s snapshots.Shape, overlay string) []string {
	m := b.machine
	args := append(m.AccelArgs(s.Accel), "-nodefaults", "-display", "none", "-machine", m.Options, "-m", fmt.Sprint(s.RAMMB),
		"-object", fmt.Sprintf("memory-backend-ram,id=ram,size=%dM", s.RAMMB), "-serial", "stdio", "-kernel", b.kernel, "-initrd", b.initrdPath(),
		"-append", m.KernelArgs(s.Accel), "-drive", "if=virtio,format=qcow2,file="+overlay,
		"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0,romfile=")
	if rom := m.BIOS(); rom != "" {
		args = append(args, "-bios", rom)
	}
	return args
}
