// Package initrd makes the initramfs of a VM: the base one and what makes the
// guest itself.
package initrd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/image/cpio"
	"github.com/fusevm/fuse/internal/hostd/vmm"
)

// File is its name in the VM's directory.
const File = "initrd"

// Config is what the guest agent reads before it does anything.
func Config(vm driver.VM, id driver.Identity, img guestwire.BootImage, net guestwire.BootNetwork) guestwire.BootConfig {
	return guestwire.BootConfig{
		VMID: vm.ID, Hostname: id.Hostname, MachineID: id.MachineID, Token: id.Token,
		CertPEM: string(id.CertPEM), KeyPEM: string(id.KeyPEM),
		Root:  guestwire.BootRoot{Serial: vmm.RootSerial, Grow: true},
		Net:   net,
		Image: img,
	}
}

// ImageOf is what the image says of the processes run in it.
func ImageOf(img image.Image) guestwire.BootImage {
	return guestwire.BootImage{Env: img.Env, Workdir: img.Workdir, User: img.User, Entrypoint: img.Entrypoint, Cmd: img.Cmd}
}

// Make writes the VM's own initramfs: a copy of the base one and an
// archive with the boot configuration. It belongs to the VM's user, who must
// be able to open it through its descriptor; it returns it open.
func Make(dir, base string, uid int, c guestwire.BootConfig) (*os.File, error) {
	config, err := c.Encode()
	if err != nil {
		return nil, err
	}
	in, err := os.Open(base)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	path := filepath.Join(dir, File)
	out, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o400)
	if err != nil {
		return nil, err
	}
	if err := fill(out, in, config); err != nil {
		return nil, errors.Join(fmt.Errorf("write %s: %w", File, err), out.Close())
	}
	if uid >= 0 {
		if err := out.Chown(uid, uid); err != nil {
			return nil, errors.Join(err, out.Close())
		}
	}
	return out, nil
}

func fill(out, in *os.File, config []byte) error {
	n, err := io.Copy(out, in)
	if err != nil {
		return err
	}
	if pad := (4 - n%4) % 4; pad > 0 { // base archives are padded; others' may not be
		if _, err := out.Write(make([]byte, pad)); err != nil {
			return err
		}
	}
	a := cpio.NewWriter(out)
	_ = a.File(guestwire.BootConfigPath, 0o600, int64(len(config)), bytes.NewReader(config)) // kept for Close
	return a.Close()
}
