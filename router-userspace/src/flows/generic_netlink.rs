//! Questions by generic netlink: what ethtool(8) shows, and what drivers can do with XDP. Asked and answered synchronously.

use std::io;

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload, NlaBuffer,
    NlasIterator, ParseableParametrized,
};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};

/// More than the largest message that the kernel sends in one piece.
const BUFFER: usize = 64 * 1024;

/// An attribute: its number in the family and its bytes.
pub type Attribute = (u16, Vec<u8>);

/// A message of any family: its command and attributes.
#[derive(Clone, Debug)]
struct Message {
    command: u8,
    attributes: Vec<DefaultNla>,
}

/// A socket for questions.
#[derive(Debug)]
pub struct GenericNetlink {
    socket: Socket,
    buffer: Vec<u8>,
}

impl GenericNetlink {
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, buffer: vec![0; BUFFER] })
    }

    /// The number of a family. An error where this kernel does not have it.
    pub fn family(&mut self, name: &str) -> io::Result<u16> {
        let nlas = vec![GenlCtrlAttrs::FamilyName(name.to_owned())];
        let question = GenlMessage::from_payload(GenlCtrl { cmd: GenlCtrlCmd::GetFamily, nlas });
        let mut number = None;
        self.ask(question, false, |answer: GenlCtrl| {
            number = answer.nlas.iter().find_map(|attribute| match attribute {
                GenlCtrlAttrs::FamilyId(number) => Some(*number),
                _ => None,
            });
        })?;
        number.ok_or_else(|| io::Error::other(format!("the kernel gave no number for {name}")))
    }

    /// Asks for one thing, or for all that there are (`dump`). `each` gets the attributes of every answer.
    pub fn get(
        &mut self,
        family: u16,
        command: u8,
        attributes: Vec<DefaultNla>,
        dump: bool,
        mut each: impl FnMut(&[Attribute]),
    ) -> io::Result<()> {
        let mut question = GenlMessage::from_payload(Message { command, attributes });
        question.set_resolved_family_id(family);
        self.ask(question, dump, |answer: Message| {
            let attributes: Vec<_> = answer
                .attributes
                .iter()
                .map(|attribute| {
                    let mut value = vec![0; netlink_packet_core::Nla::value_len(attribute)];
                    netlink_packet_core::Nla::emit_value(attribute, &mut value);
                    (netlink_packet_core::Nla::kind(attribute), value)
                })
                .collect();
            each(&attributes);
        })
    }

    fn ask<M>(&mut self, question: GenlMessage<M>, dump: bool, mut each: impl FnMut(M)) -> io::Result<()>
    where
        M: GenlFamily + Emitable + ParseableParametrized<[u8], GenlHeader> + std::fmt::Debug,
    {
        let mut question = NetlinkMessage::from(question);
        question.header.flags = NLM_F_REQUEST | if dump { NLM_F_DUMP } else { 0 };
        question.finalize();
        let mut bytes = vec![0; question.buffer_len()];
        question.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        loop {
            let received = self.socket.recv(&mut &mut self.buffer[..], 0)?;
            let mut rest = &self.buffer[..received];
            while !rest.is_empty() {
                let message =
                    NetlinkMessage::<GenlMessage<M>>::deserialize(rest).map_err(io::Error::other)?;
                let length = (message.header.length as usize).next_multiple_of(4);
                rest = rest.get(length..).filter(|_| length > 0).unwrap_or_default();
                match message.payload {
                    NetlinkPayload::InnerMessage(message) => {
                        each(message.into_parts().1);
                        if !dump {
                            return Ok(());
                        }
                    }
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    _ => {}
                }
            }
        }
    }
}

impl GenlFamily for Message {
    /// Numbers of families are looked up by [`GenericNetlink::family`].
    fn family_name() -> &'static str {
        ""
    }

    fn command(&self) -> u8 {
        self.command
    }

    fn version(&self) -> u8 {
        1
    }
}

impl Emitable for Message {
    fn buffer_len(&self) -> usize {
        self.attributes.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.attributes.as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Message {
    fn parse_with_param(bytes: &[u8], header: GenlHeader) -> Result<Self, DecodeError> {
        let attributes = attributes(bytes).map(|(kind, value)| DefaultNla::new(kind, value)).collect();
        Ok(Self { command: header.cmd, attributes })
    }
}

/// The attributes that lie in these bytes, up to the first that is malformed.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = Attribute> {
    NlasIterator::new(bytes)
        .map_while(Result::ok)
        .map(|attribute: NlaBuffer<&[u8]>| (attribute.kind(), attribute.value().to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_the_family_of_families_and_no_nonsense() {
        let mut netlink = GenericNetlink::open().unwrap();
        assert_eq!(netlink.family("nlctrl").unwrap(), 16);
        assert!(netlink.family("no_such_family").is_err());
    }
}
