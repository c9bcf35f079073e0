package ports

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/network"
)

// Slots are network slots with what they publish. A nil *Slots stands for user
// networking, by which the ports of guests cannot be reached.
type Slots struct {
	*network.Manager
	table *Table
	log   *slog.Logger
}

// OpenSlots takes the slots of a host whose VMs have their directories below
// dir. What an earlier process published is in the rules from the beginning.
func OpenSlots(cfg network.Config, dir string, span Range) (*Slots, error) {
	s := &Slots{table: New(span, cfg.Logger), log: cfg.Logger}
	known, err := s.table.LoadAll(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range known {
		cfg.Published = append(cfg.Published, published(e.Slot, e.Ports)...)
	}
	if s.Manager, err = network.New(cfg); err != nil {
		return nil, err
	}
	s.table.ReserveWith(s.Reserve)
	return s, nil
}

func published(slot int, list []driver.Port) []network.Published {
	out := make([]network.Published, len(list))
	for i, p := range list {
		out[i] = network.Published{Slot: slot, UDP: p.Protocol == fleet.ProtocolUDP, Host: uint16(p.Host), Guest: uint16(p.Guest)}
	}
	return out
}

// Publish is driver.Publisher's for one VM.
func (s *Slots) Publish(ctx context.Context, vm driver.VM, want []driver.Port) ([]driver.Port, error) {
	if s == nil {
		if len(want) == 0 {
			return nil, nil
		}
		return nil, unreachable()
	}
	return s.table.Set(vm, want, func(list []driver.Port) error {
		return s.Manager.Publish(ctx, vm.Slot, published(vm.Slot, list))
	})
}

func unreachable() error {
	return fleet.Errorf(fleet.CodeUnimplemented, "this host has user networking, by which the ports of guests cannot be reached").
		With(fleet.DetailRemedy, "run the host agent as root")
}

// Republish makes whole what an earlier process published, and may not have
// seen the end of. What keeps it from that is logged: the VM runs all the same.
func (s *Slots) Republish(ctx context.Context, vm driver.VM) {
	if s == nil {
		return
	}
	list, err := s.table.Load(vm)
	if err == nil && list != nil {
		err = s.Manager.Publish(ctx, vm.Slot, published(vm.Slot, list))
	}
	if err != nil {
		s.log.Error("ports of an adopted vm not published again", "vm_id", vm.ID, "uid", vm.UID, "error", err)
	}
}

// Dial connects to a TCP port of a VM's guest.
func (s *Slots) Dial(ctx context.Context, vm driver.VM, port int) (net.Conn, error) {
	if s == nil {
		return nil, unreachable()
	}
	slot, err := s.Slot(vm.Slot)
	if err != nil {
		return nil, err
	}
	return slot.Dial(ctx, "tcp", net.JoinHostPort(network.GuestAddr.String(), strconv.Itoa(port)))
}

// RemoveVM removes a VM's slot and gives its ports back.
func (s *Slots) RemoveVM(ctx context.Context, vm driver.VM) error {
	return errors.Join(s.Remove(ctx, vm.Slot), s.table.Release(vm.UID))
}

// Close lets go of the process's own descriptors. Slots and rules stay.
func (s *Slots) Close() error { return errors.Join(s.table.Close(), s.Manager.Close()) }
