package qemu

import (
	"context"
	"net"

	"github.com/fusevm/fuse/internal/hostd/driver"
)

var _ driver.Publisher = (*instance)(nil)

// Publish implements driver.Publisher.
func (i *instance) Publish(ctx context.Context, want []driver.Port) ([]driver.Port, error) {
	return i.d.slots.Publish(ctx, i.vm, want)
}

// Dial implements driver.Publisher.
func (i *instance) Dial(ctx context.Context, port int) (net.Conn, error) {
	return i.d.slots.Dial(ctx, i.vm, port)
}
