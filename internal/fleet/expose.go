package fleet

import (
	"regexp"
	"strconv"
)

// Bounds of published ports.
const (
	MaxPort   = 65535
	MaxExpose = 32 // of one environment
)

// AgentPort is where the guest agent of every environment listens, with TLS.
const AgentPort = 9550

// SetEndpoints notes what is published. Where the guest agent is one of it, that
// is the environment's URL.
func (vm *VM) SetEndpoints(endpoints []Endpoint) {
	vm.Endpoints, vm.URL = endpoints, ""
	for _, e := range endpoints {
		if e.Port == AgentPort && e.Protocol != ProtocolUDP {
			vm.URL = e.URL
		}
	}
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// CheckExpose checks the ports that an environment is to publish: each in range
// and once a protocol, each name a DNS label and once. It makes an empty
// protocol tcp.
func CheckExpose(ports []ExposeSpec) error {
	if len(ports) > MaxExpose {
		return Invalid("expose", strconv.Itoa(MaxExpose)+" ports", "publish fewer ports", "has %d ports", len(ports))
	}
	type number struct {
		Protocol
		host bool
		port int
	}
	taken, names := map[number]bool{}, map[string]bool{}
	for i := range ports {
		p := &ports[i]
		if p.Protocol == "" {
			p.Protocol = ProtocolTCP
		}
		guest, host := number{p.Protocol, false, p.Port}, number{p.Protocol, true, p.HostPort}
		switch {
		case p.Protocol != ProtocolTCP && p.Protocol != ProtocolUDP:
			return Invalid("expose.protocol", "tcp or udp", "leave it out for tcp", "%.40q is not known", p.Protocol)
		case p.Port < 1 || p.Port > MaxPort:
			return Invalid("expose.port", "1 to 65535", "name a port that a program of the guest listens at", "is %d", p.Port)
		case p.HostPort < 0 || p.HostPort > MaxPort:
			return Invalid("expose.host_port", "1 to 65535", "leave it out and the host chooses", "is %d", p.HostPort)
		case taken[guest]:
			return Invalid("expose.port", "each port once a protocol", "leave one of them out", "%s %d is there twice", p.Protocol, p.Port)
		case p.HostPort != 0 && taken[host]:
			return Invalid("expose.host_port", "each port once a protocol", "leave it out and the host chooses", "%s %d is there twice", p.Protocol, p.HostPort)
		case p.As != "" && !dnsLabel.MatchString(p.As):
			return Invalid("expose.as", "1 to 63 lower-case letters, digits and inner dashes", "use a DNS label", "%.80q is not allowed", p.As)
		case p.As != "" && names[p.As]:
			return Invalid("expose.as", "each name once", "use another name", "%q is there twice", p.As)
		}
		taken[guest], taken[host], names[p.As] = true, true, true
	}
	return nil
}
