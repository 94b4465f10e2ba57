// Program peer-codec reads and writes what etcd's peers send each other with etcd's own code, for the tests of ringd's.
//
//	peer-codec describe       a message stream's messages as text
//	peer-codec message        a message stream, decoded and encoded again
//	peer-codec msgapp         a msgapp stream, decoded by member 2 and encoded again
//	peer-codec describe-app   a msgapp stream's messages as text
//	peer-codec change         a membership change as text, and encoded again in hex
//	peer-codec make           a message stream with messages of all types, some fields set to zero
//
// The codecs are not exported; they are linked to by name.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unsafe"

	"google.golang.org/protobuf/proto"

	"go.etcd.io/etcd/client/pkg/v3/types"
	_ "go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	stats "go.etcd.io/etcd/server/v3/etcdserver/api/v2stats"
	"go.etcd.io/raft/v3/raftpb"
)

//go:linkname newAppEncoder go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp.newMsgAppV2Encoder
func newAppEncoder(w io.Writer, fs *stats.FollowerStats) unsafe.Pointer

//go:linkname encodeApp go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp.(*msgAppV2Encoder).encode
func encodeApp(encoder unsafe.Pointer, m *raftpb.Message) error

//go:linkname newAppDecoder go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp.newMsgAppV2Decoder
func newAppDecoder(r io.Reader, local, remote types.ID) unsafe.Pointer

//go:linkname decodeApp go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp.(*msgAppV2Decoder).decode
func decodeApp(decoder unsafe.Pointer) (*raftpb.Message, error)

// Both have one field, an interface.
type messageEncoder struct{ w io.Writer }
type messageDecoder struct{ r io.Reader }

//go:linkname encodeMessage go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp.(*messageEncoder).encode
func encodeMessage(encoder *messageEncoder, m *raftpb.Message) error

//go:linkname decodeMessage go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp.(*messageDecoder).decode
func decodeMessage(decoder *messageDecoder) (*raftpb.Message, error)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(command string) error {
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	messages := &messageDecoder{bytes.NewReader(input)}
	appends := newAppDecoder(bytes.NewReader(input), 1, 2)
	nextMessage := func() (*raftpb.Message, error) { return decodeMessage(messages) }
	nextAppend := func() (*raftpb.Message, error) { return decodeApp(appends) }
	switch command {
	case "describe":
		return each(nextMessage, func(m *raftpb.Message) error {
			fmt.Println(describe(m))
			return nil
		})
	case "describe-app":
		return each(nextAppend, func(m *raftpb.Message) error {
			fmt.Println(describe(m))
			return nil
		})
	case "message":
		encoder := &messageEncoder{os.Stdout}
		return each(nextMessage, func(m *raftpb.Message) error { return encodeMessage(encoder, m) })
	case "msgapp":
		encoder := newAppEncoder(os.Stdout, &stats.FollowerStats{})
		return each(nextAppend, func(m *raftpb.Message) error { return encodeApp(encoder, m) })
	case "change":
		var change raftpb.ConfChange
		if err := proto.Unmarshal(input, &change); err != nil {
			return err
		}
		again, err := proto.Marshal(&change)
		if err != nil {
			return err
		}
		fmt.Printf("%d %s %d %x\n%x\n", change.GetId(), change.GetType(), change.GetNodeId(), change.GetContext(), again)
		return nil
	case "make":
		return makeAll()
	}
	return fmt.Errorf("unknown command %q", command)
}

func each(next func() (*raftpb.Message, error), use func(*raftpb.Message) error) error {
	for {
		m, err := next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := use(m); err != nil {
			return err
		}
	}
}

func describe(m *raftpb.Message) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s to %x from %x term %d logterm %d index %d commit %d", m.GetType(), m.GetTo(), m.GetFrom(),
		m.GetTerm(), m.GetLogTerm(), m.GetIndex(), m.GetCommit())
	fmt.Fprintf(&text, " reject %t hint %d context %x", m.GetReject(), m.GetRejectHint(), m.GetContext())
	for _, entry := range m.GetEntries() {
		fmt.Fprintf(&text, " entry %d %d %d %x", int32(entry.GetType()), entry.GetTerm(), entry.GetIndex(), entry.GetData())
	}
	if snapshot := m.GetSnapshot(); snapshot != nil {
		metadata := snapshot.GetMetadata()
		state := metadata.GetConfState()
		fmt.Fprintf(&text, " snapshot %x %d %d %v %v %v %v %t", snapshot.GetData(), metadata.GetIndex(), metadata.GetTerm(),
			state.GetVoters(), state.GetLearners(), state.GetVotersOutgoing(), state.GetLearnersNext(), state.GetAutoLeave())
	}
	return text.String()
}

// makeAll writes messages of every type; with every second one all scalars are set, as old members do.
func makeAll() error {
	encoder := &messageEncoder{os.Stdout}
	for number := range raftpb.MessageType_name {
		for variant := range uint64(4) {
			kind := raftpb.MessageType(number)
			m := &raftpb.Message{Type: &kind, To: proto.Uint64(1), From: proto.Uint64(2 << 60), Term: proto.Uint64(variant * 77)}
			if variant%2 == 0 {
				m.LogTerm, m.Index, m.Commit = proto.Uint64(0), proto.Uint64(0), proto.Uint64(variant<<40)
				m.Reject, m.RejectHint, m.Vote = proto.Bool(variant > 1), proto.Uint64(variant), proto.Uint64(variant)
				m.Context = []byte("context")
			}
			for index := range variant {
				entry := &raftpb.Entry{Type: raftpb.EntryType(index % 3).Enum(), Index: proto.Uint64(index)}
				if index > 0 {
					entry.Term, entry.Data = proto.Uint64(9), bytes.Repeat([]byte{byte(index)}, int(index*100))
				}
				m.Entries = append(m.Entries, entry)
			}
			if kind == raftpb.MsgSnap {
				state := &raftpb.ConfState{Voters: []uint64{1, 2 << 60}, Learners: []uint64{3}, AutoLeave: proto.Bool(variant == 2)}
				metadata := &raftpb.SnapshotMetadata{ConfState: state, Index: proto.Uint64(7), Term: proto.Uint64(0)}
				m.Snapshot = &raftpb.Snapshot{Data: []byte("data"), Metadata: metadata}
			}
			if err := encodeMessage(encoder, m); err != nil {
				return err
			}
		}
	}
	return nil
}
