package fleet

import (
	"errors"
	"testing"
)

func TestCheckExpose(t *testing.T) {
	good := []ExposeSpec{{Port: 1, As: "a"}, {Port: 65535, As: "a-b", Protocol: "tcp", HostPort: 20000}, {Port: 1, Protocol: "udp", HostPort: 20000}}
	if err := CheckExpose(good); err != nil || good[0].Protocol != ProtocolTCP {
		t.Errorf("%v %+v", err, good)
	}
	for name, tt := range map[string]struct {
		ports []ExposeSpec
		scope string
	}{
		"zero":           {[]ExposeSpec{{}}, "expose.port"},
		"negative":       {[]ExposeSpec{{Port: -1}}, "expose.port"},
		"above":          {[]ExposeSpec{{Port: 65536}}, "expose.port"},
		"twice":          {[]ExposeSpec{{Port: 80}, {Port: 80, Protocol: "tcp"}}, "expose.port"},
		"protocol":       {[]ExposeSpec{{Port: 80, Protocol: "sctp"}}, "expose.protocol"},
		"host above":     {[]ExposeSpec{{Port: 80, HostPort: 65536}}, "expose.host_port"},
		"host twice":     {[]ExposeSpec{{Port: 80, HostPort: 20000}, {Port: 81, HostPort: 20000}}, "expose.host_port"},
		"upper case":     {[]ExposeSpec{{Port: 80, As: "Web"}}, "expose.as"},
		"dash at an end": {[]ExposeSpec{{Port: 80, As: "web-"}}, "expose.as"},
		"dot":            {[]ExposeSpec{{Port: 80, As: "a.b"}}, "expose.as"},
		"name twice":     {[]ExposeSpec{{Port: 80, As: "a"}, {Port: 81, As: "a"}}, "expose.as"},
		"too many":       {make([]ExposeSpec, MaxExpose+1), "expose"},
	} {
		var fe *Error
		if err := CheckExpose(tt.ports); !errors.As(err, &fe) || fe.Code != CodeInvalidArgument || fe.Details[DetailScope] != tt.scope || fe.Details[DetailLimit] == "" || fe.Details[DetailRemedy] == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
